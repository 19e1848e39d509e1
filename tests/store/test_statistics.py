"""Calls do the same whatever the statistics of the tables are, and whatever plan PostgreSQL chooses."""

import pytest
from django.db import connection, transaction

from django_jobchains.models import Job
from tests.support.connections import committing, holding
from tests.support.jobs import AT_ONCE, MAIL, SHIP, claim, create, expire, stored

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("priority", [-5, 0, 5])
def test_claim_finds_jobs_after_the_table_was_analyzed(store, priority):
    """SQLite 3.40 then uses a Bloom filter on the expression of the index, which makes an equality find nothing."""
    create(store, 500, MAIL, priority=priority)
    analyze()
    assert len(claim(store, 5)) == 5


@pytest.mark.parametrize("known", [0, 1, 2])
def test_jobs_of_a_claim_have_the_same_time_if_the_planner_expects_an_empty_table(store, known):
    """PostgreSQL may then read the clock again for each job."""
    create(store, known)
    analyze()
    create(store, 50)
    claim(store)
    assert Job.objects.filter(status="running").values("last_attempt_at").distinct().count() == 1


def analyze():
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


@committing
@pytest.mark.postgresql
class TestBadPlans:
    @pytest.fixture(autouse=True)
    def first(self, store):
        """A job. PostgreSQL expects no other, so that it repeats a subquery for each row."""
        [job_id] = create(store)
        analyze()
        return job_id

    @pytest.mark.parametrize("limit", [1, 3])
    def test_bad_plan_claims_no_more_than_the_limit(self, store, limit):
        create(store, 19)
        with bad_plan():
            assert len(claim(store, limit)) == limit
        assert Job.objects.with_status("running").count() == limit

    def test_bad_plan_claims_no_more_than_the_limit_over_many_groups(self, store):
        for priority in range(1, 6):
            create(store, 2, SHIP, priority=priority)
            create(store, 2, MAIL, priority=priority)
        with bad_plan():
            assert [job.priority for job in claim(store, 6)] == [5] * 4 + [4] * 2
        assert Job.objects.with_status("running").count() == 6

    def test_bad_plan_reaps_no_more_than_the_limit(self, store):
        create(store, 19)
        expire(*claim(store))
        with bad_plan():
            assert len(store.leases.reap(1, AT_ONCE, 10)) == 1
        assert Job.objects.with_status("running").count() == 19

    def test_bad_plan_claims_no_job_that_is_locked(self, store, first):
        [free] = create(store)
        other = holding(lambda store: store.attempts.lock(first))
        with bad_plan():
            assert [job.id for job in claim(store)] == [free]
        other.result()
        assert stored(first).status == "pending"


class bad_plan(transaction.Atomic):  # noqa: N801 - used as a context manager
    """A transaction in which PostgreSQL joins with nested loops."""

    def __init__(self):
        super().__init__(using=None, savepoint=True, durable=False)

    def __enter__(self):
        connection.close()  # a new session has no cached plans
        super().__enter__()
        with connection.cursor() as cursor:
            for method in ("hashjoin", "mergejoin", "material", "memoize", "hashagg", "bitmapscan"):
                cursor.execute(f"SET LOCAL enable_{method} = off")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite stores times as text")
@pytest.mark.parametrize(("seconds", "moved"), [("0", 0), ("5e-324", 0), ("0.001", 1), ("1.5", 1_500), ("-2", -2_000)])
def test_sum_of_a_time_and_seconds_is_exact_to_the_millisecond(store, seconds, moved):
    first, last = 2_000, 57_999
    time = "printf('2026-11-21 08:52:%%02d.%%03d000', n / 1000, n %% 1000)"
    rows = store.db.fetch(
        f"WITH RECURSIVE times AS (SELECT {first} AS n UNION ALL SELECT n + 1 FROM times WHERE n < {last}) "
        f"SELECT n, substr(sum, 18, 2) * 1000 + substr(sum, 21, 3) "
        f"FROM (SELECT n, {store.db.after('time', seconds)} AS sum FROM (SELECT n, {time} AS time FROM times))",
        [],
    )
    assert [(n, found) for n, found in rows if found != n + moved] == []
