"""With a quarter of a million jobs, no list reads or sorts a whole table, wherever its page begins."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import F

from django_jobchains import chains
from django_jobchains.db.keyset import Unindexed
from django_jobchains.models import Chain, Job
from django_jobchains.monitoring import overview
from django_jobchains.statuses import Status
from tests.queries import million
from tests.queries.million import (
    ABSENT,
    ABSENT_QUEUE,
    BEGIN,
    BLOCKED_BEFORE,
    BLOCKER,
    BUSY_FROM,
    FIVE_STEPS,
    JOBS,
    LONG,
    LONG_CHAIN,
    MOSTLY_LATER,
    RARE,
    RARE_QUEUE,
    RELIABLE_QUEUE,
    SHORT,
    STEPS_OF_LONG_CHAIN,
    id_of,
)
from tests.queries.reading import reading_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.timeout(600)]

#: The largest number of rows that a node of a plan may read for a page of 50, and of thousands of steps on SQLite. A
#: list may pass over the steps of one long chain, or sort the dependents of one chain.
MAX_ROWS = 20_000
MAX_THOUSAND_STEPS = 500
MAX_SORTED = JOBS // 20


@pytest.fixture(scope="module", autouse=True)
def _million(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock():
        million.load()
        yield
        million.clear()


def assert_reads_little(call, most_rows=MAX_ROWS):
    reading = reading_of(call)
    plan = "\n".join(reading.plan)
    assert not reading.scans, plan
    assert reading.rows < most_rows, plan
    assert reading.sorted_rows < MAX_SORTED, plan
    assert reading.steps < MAX_THOUSAND_STEPS, plan


def created(filtered, first, last):
    start, end = BEGIN + timedelta(seconds=first), BEGIN + timedelta(seconds=last)
    return lambda rows: filtered(rows).created_between(start, end)


MIDDLE = SHORT // 2
BUSY = (BUSY_FROM + SHORT) // 2


def having(rows, status):
    """Filter by status as the lists of the admin do."""
    return rows.filter(Unindexed(F("status"), status)) if status == "completed" else rows.with_status(status)


#: Each list, and the number of the chain after which one of its later pages begins.
LISTS = {
    "all": (lambda rows: rows.all(), MIDDLE),
    "blocked": (lambda rows: rows.with_status("blocked"), BLOCKED_BEFORE // 2),
    "pending": (lambda rows: rows.with_status("pending"), BUSY),
    "running": (lambda rows: rows.with_status("running"), BUSY),
    "completed": (lambda rows: rows.with_status("completed"), MIDDLE),
    "failed": (lambda rows: rows.with_status("failed"), MIDDLE),
    "cancelled": (lambda rows: rows.with_status("cancelled"), MIDDLE),
    "failed or cancelled": (lambda rows: rows.with_status("failed", "cancelled"), MIDDLE),
    "incomplete": (lambda rows: rows.incomplete(), BUSY),
    "stopping or failed": (lambda rows: rows.with_status("stopping", "failed"), MIDDLE),
    "of a common type": (lambda rows: rows.of_type("shop.type_0"), MIDDLE),
    "of a rare type": (lambda rows: rows.of_type(RARE), MIDDLE),
    "of a type that is mostly a later step": (lambda rows: rows.of_type(MOSTLY_LATER), MIDDLE),
    "of a type that repeats itself": (lambda rows: rows.of_type(LONG), SHORT),
    "of an unknown type": (lambda rows: rows.of_type(ABSENT), MIDDLE),
    "of two types": (lambda rows: rows.of_type("shop.type_1", "shop.type_2"), MIDDLE),
    "of a type and status": (lambda rows: rows.of_type("shop.type_0").with_status("failed"), MIDDLE),
    "in a queue with nearly everything": (lambda rows: rows.in_queue("default"), MIDDLE),
    "in a rare queue": (lambda rows: rows.in_queue(RARE_QUEUE), MIDDLE),
    "in an unknown queue": (lambda rows: rows.in_queue(ABSENT_QUEUE), MIDDLE),
    **{
        f"{status} in the queue {queue}": (
            lambda rows, status=status, queue=queue: having(rows, status).in_queue(queue),
            MIDDLE,
        )
        for status in Status.values
        for queue in ("default", RARE_QUEUE, RELIABLE_QUEUE, ABSENT_QUEUE)
    },
    "incomplete in a rare queue": (lambda rows: rows.incomplete().in_queue(RARE_QUEUE), MIDDLE),
    "incomplete in a queue where nothing waits": (lambda rows: rows.incomplete().in_queue(RELIABLE_QUEUE), MIDDLE),
    "of a rare type in a common queue": (lambda rows: rows.of_type(RARE).in_queue("default"), MIDDLE),
    "of a common type in a common queue": (lambda rows: rows.of_type("shop.type_0").in_queue("default"), MIDDLE),
    "failed, of a common type, in a reliable queue": (
        lambda rows: rows.with_status("failed").of_type("shop.type_0").in_queue(RELIABLE_QUEUE),
        MIDDLE,
    ),
    "blocked by": (lambda rows: rows.blocked_by(BLOCKER), BLOCKED_BEFORE // 2),
    "of a common chain type": (lambda rows: rows.of_chain_type("shop.type_0"), MIDDLE),
    "of a rare chain type": (lambda rows: rows.of_chain_type(RARE), MIDDLE),
    "of an unknown chain type": (lambda rows: rows.of_chain_type(ABSENT), MIDDLE),
    "of two chain types": (lambda rows: rows.of_chain_type("shop.type_1", "shop.type_2"), MIDDLE),
    "roots": (lambda rows: rows.roots(), MIDDLE),
    "failed roots": (lambda rows: rows.roots().with_status("failed"), MIDDLE),
}
if connection.vendor == "postgresql":
    # SQLite, without statistics, reads all rows of the type.
    LISTS["of a common type in a rare queue"] = (lambda rows: rows.of_type("shop.type_0").in_queue(RARE_QUEUE), MIDDLE)
#: The first and last second of creation.
CREATED = {
    "all years": (0, 2 * JOBS),
    "the middle": (MIDDLE, MIDDLE + 50_000),
    "an hour": (MIDDLE, MIDDLE + 3_600),
    "the future": (2 * JOBS, 3 * JOBS),
}
for name, seconds in CREATED.items():
    for also in ("all", "roots"):
        LISTS[f"created in {name}, {also}"] = created(LISTS[also][0], *seconds), min(max(seconds[0], 100), SHORT)
MODELS = pytest.mark.parametrize("model", [Job, Chain])
EACH_LIST = pytest.mark.parametrize("name", LISTS)


def test_every_status_is_among_the_lists():
    assert set(Status.values) <= LISTS.keys()


def test_the_data_has_the_described_shape():
    with connection.cursor() as cursor:
        cursor.execute("SELECT status, count(*) FROM django_jobchains_job GROUP BY status")
        counts = dict(cursor.fetchall())
    assert sum(counts.values()) == JOBS
    assert counts["completed"] > JOBS * 0.9
    assert all(counts[status] > JOBS // 500 for status in Status.values)
    assert chains.get(LONG_CHAIN).current_job.chain_index == STEPS_OF_LONG_CHAIN - 1
    assert chains.get(FIVE_STEPS).current_job.chain_index == 4
    assert Job.objects.blocked_by(BLOCKER).count() > JOBS // 200


@MODELS
@EACH_LIST
def test_a_first_page_reads_little(model, name):
    listing = LISTS[name][0](model.objects)
    assert_reads_little(listing.page)


@MODELS
@EACH_LIST
def test_a_later_page_reads_little(model, name):
    filtered, number = LISTS[name]
    cursor = cursor_after(model, number, filtered(model.objects).page_orders[0])
    assert_reads_little(lambda: filtered(model.objects).page(cursor))


@MODELS
@pytest.mark.parametrize("type_name", [RARE, ABSENT])
def test_a_page_of_a_rare_chain_type_does_not_read_all_waiting_jobs(model, type_name):
    """5,400 jobs are blocked, and 12,000 pending. It reads the 3,000 running ones."""
    for listing, most_rows in (
        (model.objects.with_status("blocked"), 50),
        (model.objects.with_status("pending"), 50),
        (model.objects, 3_500),
    ):
        assert_reads_little(listing.of_chain_type(type_name).page, most_rows)


@pytest.mark.parametrize("name", CREATED)
def test_chains_of_a_type_and_period_are_found_by_one_index(name):
    chains = created(lambda rows: rows.of_chain_type("shop.type_0"), *CREATED[name])(Chain.objects)
    # For the running ones, PostgreSQL may intersect their index with that of the period.
    assert_reads_little(chains.page, most_rows=60_000)
    assert_reads_little(chains.order_by("id").page, most_rows=60_000)


@MODELS
@pytest.mark.parametrize(
    "name",
    [
        "all",
        "completed",
        "of a common type",
        "of a type that is mostly a later step",
        "of a common chain type",
        "roots",
        "created in the middle, all",
        "created in the future, all",
    ],
)
def test_a_page_that_starts_with_the_oldest_reads_little(model, name):
    filtered, number = LISTS[name]
    order = filtered(model.objects).page_orders[1]
    cursor = cursor_after(model, number, order)
    assert_reads_little(filtered(model.objects.order_by(*order)).page)
    assert_reads_little(lambda: filtered(model.objects.order_by(*order)).page(cursor))


def cursor_after(model, number, order=()):
    """Return the cursor of a page of the unfiltered list that ends with the chain with this number."""
    place = "chain_id" if model is Job else "id"
    here = model.objects.filter(**{f"{place}__range": (id_of(number - 20), id_of(number + 20))})
    if order:
        here.page_orders = (order, order)
    cursor = (here.order_by(*order) if order else here).page(limit=1).next_cursor
    assert cursor is not None
    return str(cursor)


LONG_JOBS = {
    "first": (lambda jobs: jobs, None),
    "middle": (lambda jobs: jobs, STEPS_OF_LONG_CHAIN // 2),
    "backwards": (lambda jobs: jobs.order_by("-chain_index"), None),
    "backwards from the middle": (lambda jobs: jobs.order_by("-chain_index"), STEPS_OF_LONG_CHAIN // 2),
}


@pytest.mark.parametrize("name", LONG_JOBS)
def test_a_page_of_a_long_chain_reads_few_other_rows(name):
    ordered, step = LONG_JOBS[name]
    jobs = ordered(Chain.from_db("default", ("id",), (LONG_CHAIN,)).jobs)
    cursor = step and jobs.filter(chain_index__range=(step - 1, step + 1)).page(limit=1).next_cursor
    assert_reads_little(lambda: jobs.page(cursor), most_rows=200)


def test_the_first_page_of_a_short_chain_reads_its_steps():
    jobs = Chain.from_db("default", ("id",), (FIVE_STEPS,)).jobs
    assert_reads_little(lambda: list(jobs.page()), most_rows=50)


ONE_CHAIN = {
    "get": lambda id_: chains.get(id_),
    "refresh": lambda id_: Chain.from_db("default", ("id",), (id_,)).refresh(),
    "read after enqueueing": lambda id_: Chain.from_db("default", ("id",), (id_,)).status,
    "with its current job": lambda id_: Chain.objects.select_related("current_job").get(pk=id_),
}


@pytest.mark.parametrize("name", ONE_CHAIN)
def test_one_chain_takes_few_rows(name):
    assert_reads_little(lambda: ONE_CHAIN[name](FIVE_STEPS), most_rows=50)
    assert reading_of(lambda: ONE_CHAIN[name](FIVE_STEPS)).steps <= 1


@pytest.mark.parametrize("name", ONE_CHAIN)
def test_a_long_chain_takes_at_most_its_own_steps(name):
    """PostgreSQL finds the last job directly, except in a query of the user; SQLite reads an entry for each step."""
    reading = reading_of(lambda: ONE_CHAIN[name](LONG_CHAIN))
    assert not reading.scans
    assert reading.rows <= (2 * STEPS_OF_LONG_CHAIN if name == "with its current job" else 50)
    assert reading.steps <= 100


def test_a_hundred_chains_take_some_hundred_rows():
    ids = [id_of(number * 20) for number in range(100)]
    assert_reads_little(lambda: list(Chain.objects.filter(pk__in=ids)), most_rows=2_000)


def test_a_typical_query_of_an_admin_reads_little():
    rows = Chain.objects.filter(type_name="shop.type_0", status="failed", created_at__gte=BEGIN)
    assert_reads_little(lambda: rows.select_related("current_job").page())


def test_an_overview_reads_a_limited_number_of_open_jobs():
    """It counts up to ``count_to`` jobs of each kind, by default ten thousand; each takes a few steps."""
    assert overview().due > 10_000
    reading = reading_of(overview)
    assert not reading.scans
    assert reading.rows < MAX_ROWS
    assert reading.steps < 2 * MAX_THOUSAND_STEPS
    assert_reads_little(lambda: overview(count_to=500), most_rows=8_000)


@MODELS
@pytest.mark.parametrize("status", ["failed", "blocked", "running"])
def test_exists_reads_little(model, status):
    """PostgreSQL may find the first row without an index, but it must stop there."""
    assert reading_of(lambda: model.objects.with_status(status).exists()).rows < MAX_ROWS
    assert reading_of(lambda: model.objects.incomplete().exists()).steps < MAX_THOUSAND_STEPS


#: The blocked, pending and running jobs, and a few more.
MAX_NOT_ENDED = 25_000


@MODELS
@pytest.mark.parametrize("name", ["of a rare type", "of a rare chain type", "in a rare queue", "of an unknown type"])
def test_count_of_a_name_reads_its_rows_and_at_most_those_that_have_not_ended(model, name):
    assert_reads_little(LISTS[name][0](model.objects).count, most_rows=MAX_NOT_ENDED)


#: For thousands of old jobs, and a day of others whose ids a clock ahead of the database could have created.
MAX_OF_A_PRUNE = 15_000
PRUNES = {
    "all": {},
    "failed": {"statuses": ["failed"]},
    "of a common type": {"types": ["shop.type_0"]},
    "of a rare type": {"types": [RARE]},
    "of an unknown type": {"types": [ABSENT]},
}


@pytest.mark.parametrize("name", PRUNES)
def test_a_prune_reads_only_old_jobs(name):
    """Each of its statements reads about one batch, and none reads the newer jobs."""
    older_than = datetime.now(UTC) - BEGIN - timedelta(seconds=BLOCKED_BEFORE + 2_000)
    before = Job.objects.count()
    reading = reading_of(lambda: chains.prune(older_than, batch=500, **PRUNES[name]))
    plan = "\n".join(reading.plan)
    assert not reading.scans, plan
    assert reading.rows < MAX_ROWS, plan
    assert reading.steps < MAX_OF_A_PRUNE, plan
    assert (Job.objects.count() < before) == (name in ("all", "failed", "of a common type"))
