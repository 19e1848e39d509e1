"""At a million jobs: no list reads a table whole or sorts it, whatever is asked for and wherever a page begins."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.overview import overview
from django_jobchains.statuses import Status
from tests.queries import million
from tests.queries.million import (
    ABSENT,
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
    SHORT,
    STEPS_OF_LONG_CHAIN,
    id_of,
)
from tests.queries.reading import reading_of

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.timeout(600)]

#: Rows that one node of a plan reads, and steps of SQLite's machine, for a page of 50 rows. A list may pass over the
#: steps of one long chain, or sort the dependents of one chain.
MOST_ROWS = 20_000
MOST_THOUSAND_STEPS = 500
MOST_SORTED = JOBS // 20


@pytest.fixture(scope="module", autouse=True)
def _million(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        million.load()
        yield
        million.clear()


def assert_reads_little(call: Callable[[], object], most_rows: int = MOST_ROWS) -> None:
    reading = reading_of(call)
    plan = "\n".join(reading.plan)
    assert not reading.scans, plan
    assert reading.rows < most_rows, plan
    assert reading.sorted_rows < MOST_SORTED, plan
    assert reading.steps < MOST_THOUSAND_STEPS, plan


MIDDLE = SHORT // 2
BUSY = (BUSY_FROM + SHORT) // 2
#: Each list, and where one of its later pages begins: behind the chain with that number.
LISTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "all": (lambda rows: rows.all(), MIDDLE),
    "blocked": (lambda rows: rows.with_status("blocked"), BLOCKED_BEFORE // 2),
    "pending": (lambda rows: rows.with_status("pending"), BUSY),
    "running": (lambda rows: rows.with_status("running"), BUSY),
    "completed": (lambda rows: rows.with_status("completed"), MIDDLE),
    "failed": (lambda rows: rows.with_status("failed"), MIDDLE),
    "cancelled": (lambda rows: rows.with_status("cancelled"), MIDDLE),
    "failed or cancelled": (lambda rows: rows.with_status("failed", "cancelled"), MIDDLE),
    "incomplete": (lambda rows: rows.incomplete(), BUSY),
    "of a common type": (lambda rows: rows.of_type("shop.type_0"), MIDDLE),
    "of a rare type": (lambda rows: rows.of_type(RARE), MIDDLE),
    "of a type that is mostly a later step": (lambda rows: rows.of_type(MOSTLY_LATER), MIDDLE),
    "of a type that repeats itself": (lambda rows: rows.of_type(LONG), SHORT),
    "of no type there is": (lambda rows: rows.of_type(ABSENT), MIDDLE),
    "of two types": (lambda rows: rows.of_type("shop.type_1", "shop.type_2"), MIDDLE),
    "of a type and status": (lambda rows: rows.of_type("shop.type_0").with_status("failed"), MIDDLE),
    "blocked by": (lambda rows: rows.blocked_by(BLOCKER), BLOCKED_BEFORE // 2),
}
MODELS = pytest.mark.parametrize("model", [Job, Chain])
EACH_LIST = pytest.mark.parametrize("name", LISTS)


def test_every_status_is_among_the_lists() -> None:
    assert set(Status.values) <= LISTS.keys()


def test_the_data_is_what_it_says() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT status, count(*) FROM django_jobchains_job GROUP BY status")
        counts = dict(cursor.fetchall())
    assert sum(counts.values()) == JOBS
    assert counts["completed"] > JOBS * 0.95
    assert all(counts[status] > 2_000 for status in Status.values)
    assert chains.get(LONG_CHAIN).current_job.chain_index == STEPS_OF_LONG_CHAIN - 1
    assert chains.get(FIVE_STEPS).current_job.chain_index == 4
    assert Job.objects.blocked_by(BLOCKER).count() > 5_000


@MODELS
@EACH_LIST
def test_a_first_page_reads_little(model: Any, name: str) -> None:
    listing = LISTS[name][0](model.objects)
    assert_reads_little(listing.page)


@MODELS
@EACH_LIST
def test_a_later_page_reads_little(model: Any, name: str) -> None:
    filtered, number = LISTS[name]
    cursor = beginning_behind(model, number)
    assert_reads_little(lambda: filtered(model.objects).page(cursor))


@MODELS
@pytest.mark.parametrize("name", ["all", "completed", "of a common type", "of a type that is mostly a later step"])
def test_a_page_from_the_oldest_on_reads_little(model: Any, name: str) -> None:
    filtered, number = LISTS[name]
    order = model.objects.all().page_orders[1]
    cursor = beginning_behind(model, number, order)
    assert_reads_little(filtered(model.objects.order_by(*order)).page)
    assert_reads_little(lambda: filtered(model.objects.order_by(*order)).page(cursor))


def beginning_behind(model: Any, number: int, order: tuple[str, ...] = ()) -> str:
    """The cursor of a page in the list of all that ends at the chain with that number."""
    place = "chain_id" if model is Job else "id"
    here = model.objects.filter(**{f"{place}__range": (id_of(number - 20), id_of(number + 20))})
    cursor = (here.order_by(*order) if order else here).page(limit=1).next_cursor
    assert cursor is not None
    return str(cursor)


LONG_JOBS: dict[str, tuple[Callable[[Any], Any], int | None]] = {
    "first": (lambda jobs: jobs, None),
    "middle": (lambda jobs: jobs, 5_000),
    "backwards": (lambda jobs: jobs.order_by("-chain_index"), None),
    "backwards from the middle": (lambda jobs: jobs.order_by("-chain_index"), 5_000),
}


@pytest.mark.parametrize("name", LONG_JOBS)
def test_a_page_of_a_long_chain_reads_little_more_than_itself(name: str) -> None:
    ordered, step = LONG_JOBS[name]
    jobs = ordered(Chain.from_db("default", ("id",), (LONG_CHAIN,)).jobs)
    cursor = step and jobs.filter(chain_index__range=(step - 1, step + 1)).page(limit=1).next_cursor
    assert_reads_little(lambda: jobs.page(cursor), most_rows=200)


def test_the_first_page_of_a_short_chain_reads_its_steps() -> None:
    jobs = Chain.from_db("default", ("id",), (FIVE_STEPS,)).jobs
    assert_reads_little(lambda: list(jobs.page()), most_rows=50)


ONE_CHAIN: dict[str, Callable[[Any], object]] = {
    "get": lambda id_: chains.get(id_),
    "refresh": lambda id_: Chain.from_db("default", ("id",), (id_,)).refresh(),
    "a question after enqueueing": lambda id_: Chain.from_db("default", ("id",), (id_,)).status,
    "with its current job": lambda id_: Chain.objects.select_related("current_job").get(pk=id_),
}


@pytest.mark.parametrize("name", ONE_CHAIN)
def test_one_chain_is_a_few_rows(name: str) -> None:
    assert_reads_little(lambda: ONE_CHAIN[name](FIVE_STEPS), most_rows=50)
    assert reading_of(lambda: ONE_CHAIN[name](FIVE_STEPS)).steps <= 1


@pytest.mark.parametrize("name", ONE_CHAIN)
def test_a_long_chain_is_at_most_its_own_steps(name: str) -> None:
    """On PostgreSQL it is found by its last job, but by a query of one's own; SQLite looks at 10,000 index entries."""
    reading = reading_of(lambda: ONE_CHAIN[name](LONG_CHAIN))
    assert not reading.scans
    assert reading.rows <= (20_000 if name == "with its current job" else 50)
    assert reading.steps <= 100


def test_a_hundred_chains_are_some_hundred_rows() -> None:
    ids = [id_of(number * 20) for number in range(100)]
    assert_reads_little(lambda: list(Chain.objects.filter(pk__in=ids)), most_rows=2_000)


def test_what_an_admin_asks_reads_little() -> None:
    asked = Chain.objects.filter(type_name="shop.type_0", status="failed", created_at__gte=BEGIN)
    assert_reads_little(lambda: asked.select_related("current_job").page())


def test_an_overview_reads_what_has_not_ended_up_to_a_limit() -> None:
    """Ten thousand of a kind, or as many as it is told to; each counted is some steps."""
    assert overview().due > 10_000
    reading = reading_of(overview)
    assert not reading.scans
    assert reading.rows < MOST_ROWS
    assert reading.steps < 2 * MOST_THOUSAND_STEPS
    assert_reads_little(lambda: overview(count_to=500), most_rows=8_000)


@MODELS
@pytest.mark.parametrize("status", ["failed", "blocked", "running"])
def test_whether_there_is_any_reads_little(model: Any, status: str) -> None:
    """PostgreSQL may find the first row without an index; what counts is that it stops there."""
    assert reading_of(lambda: model.objects.with_status(status).exists()).rows < MOST_ROWS
    assert reading_of(lambda: model.objects.incomplete().exists()).steps < MOST_THOUSAND_STEPS


#: A day of the table lies between what ended before a time and the ids that a clock ahead of the database's could make.
MOST_OF_A_PRUNE = 15_000
PRUNES: dict[str, dict[str, Any]] = {
    "all": {},
    "failed": {"statuses": ["failed"]},
    "of a common type": {"types": ["shop.type_0"]},
    "of a rare type": {"types": [RARE]},
    "of no type there is": {"types": [ABSENT]},
}


@pytest.mark.parametrize("name", PRUNES)
def test_a_prune_reads_what_is_old(name: str) -> None:
    """Of some thousand old jobs, and never the years after them: each of its statements reads about a batch."""
    older_than = datetime.now(UTC) - BEGIN - timedelta(seconds=BLOCKED_BEFORE + 2_000)
    before = Job.objects.count()
    reading = reading_of(lambda: chains.prune(older_than, batch=500, **PRUNES[name]))
    plan = "\n".join(reading.plan)
    assert not reading.scans, plan
    assert reading.rows < MOST_ROWS, plan
    assert reading.steps < MOST_OF_A_PRUNE, plan
    assert (Job.objects.count() < before) == (name in ("all", "failed", "of a common type"))
