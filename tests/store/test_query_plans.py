"""The frequent statements find their rows by index, however large the table is.

``auto_explain`` reports the plans of the actual statements: those for the given parameters, and the generic plans of
prepared statements.
"""

import pytest
from django.db import connection, transaction

from django_jobchains.declare.policies import Backoff
from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.store.queues import LimitedQueue
from tests.store.backlog import add, add_failed_attempts, add_links, analyze, committed_rows
from tests.store.planned_calls import CALLS, ENDS
from tests.support.jobs import MAIL, SHIP, claim, create, expire, running
from tests.support.plans import assert_reads_little, indexes_of, plan_of, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]


@pytest.fixture(scope="module")
def _backlog(request, django_db_setup, django_db_blocker):
    with committed_rows(django_db_blocker, getattr(request, "param", _fill)):
        yield


def _fill(cursor):
    """Create completed, pending, scheduled, running and blocked jobs.

    Every job has a deduplication key, and every blocked job has two blockers. Some jobs have failed attempts.
    """
    add(cursor, 50_000, SHIP, "completed", 0, "-1 hour")
    add(cursor, 20_000, "shop.unserved", "pending", 5, "-1 hour")
    add(cursor, 5_000, SHIP, "pending", 100, "1 day")
    add(cursor, 2_000, SHIP, "running", 0, "-1 hour")
    add(cursor, 10_000, "shop.blocked", "blocked", 0, "-1 hour")
    analyze(cursor)  # otherwise the plan for the links may be one for an empty table, which takes minutes
    add_links(cursor, "shop.blocked", "shop.unserved", is_open=True)
    add_links(cursor, "shop.blocked", SHIP, is_open=False)
    add_failed_attempts(cursor)


def _fill_small(cursor):
    """Create some thousand rows. PostgreSQL tends to read such tables sequentially if a statement has many ids."""
    add(cursor, 3_000, SHIP, "completed", 0, "-1 hour")
    add(cursor, 1_000, "shop.unserved", "pending", 0, "-1 hour")
    add(cursor, 1_000, "shop.blocked", "blocked", 0, "-1 hour")
    add_links(cursor, "shop.blocked", "shop.unserved", is_open=True)
    add_links(cursor, "shop.blocked", SHIP, is_open=False)
    add_failed_attempts(cursor)


@pytest.fixture(params=["auto", "force_generic_plan"])
def store(_backlog, request):
    use_plans(request.param)
    return get_store()


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_claim_uses_the_index_of_claimable_jobs(store, limit):
    create(store, 300)
    create(store, 300, MAIL)
    found = plan_of(lambda: claimed(store, limit))
    assert "jobchains_claimable" in indexes_of(found)
    assert_reads_little(found, limit)


def claimed(store, limit, expected=None):
    assert len(claim(store, limit)) == (limit if expected is None else expected)


@pytest.mark.parametrize("queues", [None, ["default", "other"]])
def test_next_due_uses_the_index_of_claimable_jobs(store, queues):
    create(store, 300)
    found = plan_of(lambda: store.jobs.next_due({SHIP: 60, MAIL: 60}, queues))
    assert indexes_of(found) == {"jobchains_claimable"}
    assert_reads_little(found, 1)


def test_excluded_queues_are_skipped_by_the_index(store):
    create(store, 300)
    create(store, 300, queue="paused", priority=9)
    create(store, 20, queue="open")
    leases = {SHIP: 60.0, MAIL: 60.0}
    found = plan_of(lambda: store.jobs.claim("worker", 10, leases, None, ["default", "paused"]))
    assert "jobchains_claimable" in indexes_of(found)
    assert_reads_little(found, 10)
    found = plan_of(lambda: store.jobs.next_due(leases, None, ["default", "paused"]))
    assert indexes_of(found) == {"jobchains_claimable"}
    assert_reads_little(found, 1)


#: Counts of the overview, with the number of rows that each may read.
COUNTS = {
    "pending_groups": (lambda store: store.stats.pending_groups(300), 600),
    "held_groups": (lambda store: store.stats.held_groups(300), 900),
    "failing_types": (lambda store: store.stats.failing_types(86_400), 1_000),
}


@pytest.mark.parametrize("name", COUNTS)
def test_overview_uses_indexes(store, name):
    call, most = COUNTS[name]
    assert_reads_little(plan_of(lambda: call(store)), most)


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize("end", ENDS)
def test_writes_of_attempts_use_the_primary_key(store, end, count):
    jobs = running(store, count)
    found = plan_of(lambda: ENDS[end](store, jobs))
    assert f"{Job._meta.db_table}_pkey" in indexes_of(found)
    assert_reads_little(found, count)


def test_reaper_finds_expired_leases_by_their_index(store):
    expire(*running(store, 20))
    found = plan_of(lambda: store.leases.reap(10, Backoff(), 10))
    assert "jobchains_leased" in indexes_of(found)
    assert_reads_little(found, 20)


def test_running_jobs_of_a_limited_queue_are_counted_by_the_index_of_running_jobs(store):
    found = plan_of(lambda: store.queues.count(LimitedQueue("default", 5)))
    assert indexes_of(found) == {"jobchains_leased"}


def test_the_search_for_jobs_without_keys_does_not_read_jobs_that_have_ended(store):
    found = plan_of(lambda: store.limits.without_keys({MAIL: (True, False)}, 500))
    assert indexes_of(found) == {"jobchains_status"}


def test_lock_finds_its_row_by_the_primary_key(store):
    [job_id] = create(store)
    found = plan_of(lambda: store.attempts.lock(job_id))
    assert indexes_of(found) == {f"{Job._meta.db_table}_pkey"}
    assert_reads_little(found, 1)


def test_claim_uses_the_index_without_statistics(store):
    create(store, 300)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = %s::regclass", [Job._meta.db_table])
        found = plan_of(lambda: claimed(store, 10))
    assert "jobchains_claimable" in indexes_of(found)
    assert_reads_little(found, 10)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("name", CALLS)
def test_calls_about_chains_find_their_rows_by_index(store, name, count):
    prepare, call = CALLS[name]
    ids = prepare(store, count)
    assert_reads_little(plan_of(lambda: call(store, ids)), count * 3)


@pytest.mark.parametrize("_backlog", [_fill_small], indirect=True, ids=["small tables"])
@pytest.mark.parametrize("name", {**ENDS, **CALLS})
def test_calls_use_indexes_of_small_tables(store, name):
    prepare, call = CALLS.get(name) or (running, ENDS[name])
    prepared = prepare(store, 10)
    assert_reads_little(plan_of(lambda: call(store, prepared)), 30 if name in CALLS else 10)
