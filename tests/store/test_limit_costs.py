"""The cost of a claim of limited types: one index probe for each key, however many jobs the keys have.

It is measured as in ``test_flat``.
"""

import pytest
from django.db import connection, transaction

from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.store.limits import BEFORE_ALL_KEYS, LimitedTypes, Rotation
from django_jobchains.store.rates import StartRate
from tests.store.backlog import add, analyze, pretend_rows
from tests.support.jobs import LEASE_SECONDS, MAIL, SHIP, create, database_now
from tests.support.plans import COMPILED_ABOVE, cost_of, estimated_cost_of, plan_of, use_plans

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = 1_000
LIMIT = 2
TYPES = LimitedTypes({SHIP: LEASE_SECONDS}, {SHIP: LIMIT})
RATED = LimitedTypes({SHIP: LEASE_SECONDS}, {SHIP: None}, {SHIP: StartRate(3_600_000_000, LIMIT)})
#: The cost that is allowed for each key that a claim passes, and for the statements.
FOR_A_KEY = {"postgresql": 16, "sqlite": 400}
FOR_THE_STATEMENTS = {"postgresql": 120, "sqlite": 3_000}
#: The same for a claim of ten keys. Reading all thousand would take ten times as much. SQLite 3.37 takes more steps.
FOR_TEN_KEYS = {"postgresql": 600, "sqlite": 30_000}


def fill(jobs_of_a_key, *, is_saturated=True, is_rated=False):
    """Create keys with this many pending jobs, all at their limit except one, or all free."""
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        add(cursor, KEYS * jobs_of_a_key, SHIP, "pending", 0, "-1 hour")
        add(cursor, KEYS * LIMIT * (is_saturated and not is_rated), SHIP, "running", 0, "-1 hour")
        key = f"(CAST(substr(deduplication_key, 5) AS integer) % {KEYS})"
        counted_by = "rate_key" if is_rated else "concurrency_key"
        cursor.execute(f"UPDATE {table} SET limit_key = {key}, {counted_by} = 'shop.ship ' || {key}")
        if is_saturated and is_rated:
            get_store().rates.charge(
                [
                    (f"shop.ship {number}", rate)
                    for number in range(KEYS)
                    if number != 777
                    for rate in [RATED.rates[SHIP]] * LIMIT
                ],
                database_now(),
            )
        cursor.execute(f"DELETE FROM {table} WHERE status = 'running' AND limit_key = 777")
        analyze(cursor)


def costs(run, cost_of=cost_of):
    """Return the cost of a call with each kind of plan."""
    found = []
    for mode in ("auto", "force_generic_plan") if connection.vendor == "postgresql" else ("auto",):
        with transaction.atomic():
            if connection.vendor == "postgresql":
                use_plans(mode)
            found.append(cost_of(lambda: run(get_store())))
            transaction.set_rollback(True)
    return found


def claim(store, limit=10, types=TYPES):
    return store.limits.claim("worker", limit, types, Rotation(300))


rated = pytest.mark.parametrize("is_rated", [False, True], ids=["concurrency", "rate"])


@rated
def test_a_claim_among_saturated_keys_does_not_depend_on_their_backlogs(is_rated):
    vendor, types = connection.vendor, RATED if is_rated else TYPES
    fill(2, is_rated=is_rated)
    few = max(costs(lambda store: _assert_claims(store, types)))
    Job.objects.all().delete()
    fill(20, is_rated=is_rated)
    many = max(costs(lambda store: _assert_claims(store, types)))
    assert many <= FOR_A_KEY[vendor] * KEYS + FOR_THE_STATEMENTS[vendor], many
    # A larger index has another level, and the jobs of a key end on another page.
    assert many <= 3 * few + FOR_THE_STATEMENTS[vendor], (few, many)


def _assert_claims(store, types):
    jobs = claim(store, types=types)
    assert len(jobs) == LIMIT
    assert set(Job.objects.filter(pk__in=[job.id for job in jobs]).values_list("limit_key", flat=True)) == {777}


@rated
@pytest.mark.postgresql
def test_claims_of_limited_types_are_not_compiled_for_ten_million_jobs(is_rated):
    types = RATED if is_rated else TYPES
    fill(20, is_saturated=False, is_rated=is_rated)
    with connection.cursor() as cursor:
        pretend_rows(cursor, 10_000_000)
    for run in (lambda store: claim(store, 100, types), lambda store: store.limits.next_due(types)):
        assert max(costs(run, estimated_cost_of)) < COMPILED_ABOVE


@rated
def test_next_due_passes_saturated_keys_once(is_rated):
    fill(5, is_rated=is_rated)
    found = costs(lambda store: store.limits.next_due(RATED if is_rated else TYPES))
    assert max(found) <= FOR_A_KEY[connection.vendor] * KEYS + FOR_THE_STATEMENTS[connection.vendor]


def test_a_full_limit_that_all_turns_share_is_not_read_for_each_of_them():
    fill(5, is_saturated=False)
    with connection.cursor() as cursor:
        add(cursor, LIMIT, SHIP, "running", 0, "-1 hour")
        cursor.execute(f"UPDATE {Job._meta.db_table} SET concurrency_key = 'all'")
        analyze(cursor)
    types = TYPES._replace(shared_keys={SHIP: "all"})

    def run(store):
        assert claim(store, types=types) == []
        assert store.limits.next_due(types) is None

    assert max(costs(run)) <= 2 * FOR_THE_STATEMENTS[connection.vendor]


def test_the_running_jobs_of_a_key_are_not_counted_for_each_turn():
    limit = 200
    fill(2, is_saturated=False)
    with connection.cursor() as cursor:
        add(cursor, limit, SHIP, "running", 0, "-1 hour")
        cursor.execute(f"UPDATE {Job._meta.db_table} SET concurrency_key = 'all'")
        analyze(cursor)
    types = LimitedTypes({SHIP: LEASE_SECONDS}, {SHIP: limit})

    def run(store):
        assert claim(store, types=types) == []

    assert max(costs(run)) <= FOR_A_KEY[connection.vendor] * KEYS + FOR_THE_STATEMENTS[connection.vendor]


def test_limited_jobs_of_other_types_cost_nothing():
    vendor = connection.vendor
    served = LimitedTypes({MAIL: LEASE_SECONDS}, {MAIL: LIMIT})

    def run(store):
        create(store, 1, MAIL, limit_key=ord("a"), concurrency_key="shop.mail a")
        assert len(store.limits.claim("worker", 1, served, Rotation(BEFORE_ALL_KEYS))) == 1

    alone = max(costs(run))
    fill(20, is_saturated=False)
    assert max(costs(run)) <= alone + FOR_THE_STATEMENTS[vendor]


@rated
def test_a_claim_with_free_places_reads_as_many_keys_as_it_claims(is_rated):
    fill(20, is_saturated=False, is_rated=is_rated)

    def run(store):
        assert len(claim(store, types=RATED if is_rated else TYPES)) == 10

    assert max(costs(run)) <= FOR_TEN_KEYS[connection.vendor]


@pytest.mark.postgresql
@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
@rated
def test_postgresql_does_not_compile_the_statements(mode, is_rated):
    """It compiles statements that it expects to be expensive, which takes a hundred times as long as these."""
    fill(5, is_rated=is_rated)
    store, types = get_store(), RATED if is_rated else TYPES
    with transaction.atomic():
        use_plans(mode)
        for run in (lambda: claim(store, types=types), lambda: store.limits.next_due(types)):
            assert max(node["Total Cost"] for node in plan_of(run)) < 50_000
        transaction.set_rollback(True)
