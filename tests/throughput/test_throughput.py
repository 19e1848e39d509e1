"""The figures of the last hour and day, and their cost."""

from datetime import UTC, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.models import AttemptCount
from django_jobchains.monitoring import AttemptTotals, TypeRuns, athroughput, throughput
from django_jobchains.monitoring.throughput import MAX_TYPES, hourly_totals, sum_totals
from tests.support.jobs import MAIL, SHIP
from tests.support.plans import plan_of, rows_read, use_plans
from tests.support.throughput import put_clock, tally

pytestmark = pytest.mark.django_db


def numbers(parts):
    return [(part.completed, part.failed) for part in parts]


def test_without_attempts_there_are_sixty_minutes_and_a_day_of_zeros(store):
    put_clock(store, minute=30, second=15)
    found = throughput()
    assert (numbers(found.minutes), numbers(found.hours), found.types) == ([(0, 0)] * 60, [(0, 0)] * 24, ())
    hour = found.now.replace(minute=0, second=0, microsecond=0)
    half = hour + timedelta(minutes=30)
    assert [part.starts_at for part in found.minutes] == [half - timedelta(minutes=back) for back in range(59, -1, -1)]
    assert [part.starts_at for part in found.hours] == [hour - timedelta(hours=back) for back in range(23, -1, -1)]
    assert found.now.tzinfo is UTC


def test_attempts_are_counted_in_their_minute_and_hour(store):
    put_clock(store, minute=30, second=10)
    store.stats.add_counts([tally(completed=2, failed=1, crashed=4), tally(age_seconds=60), tally(age_seconds=3_500)])
    found = throughput()
    assert numbers(found.minutes)[-2:] == [(1, 0), (2, 5)]
    assert numbers(found.minutes)[0] == (1, 0)
    assert sum(completed for completed, _ in numbers(found.minutes)) == 4
    assert numbers(found.hours)[-2:] == [(1, 0), (3, 5)]


@pytest.mark.parametrize(("second", "age", "back"), [(5, 2, 1), (5, 15, 2), (50, 49, 1), (50, 60, 2)])
def test_the_clock_of_the_database_decides_in_which_minute_an_attempt_ended(store, second, age, back):
    put_clock(store, minute=0, second=second)
    store.stats.add_counts([tally(age_seconds=age)])
    found = throughput()
    assert numbers(found.minutes)[-back] == (1, 0)
    assert numbers(found.hours)[-back] == (1, 0), "the previous minute belongs to the previous hour"


def test_attempts_older_than_an_hour_or_a_day_are_not_included(store):
    put_clock(store, minute=30, second=30)
    store.stats.add_counts([tally(age_seconds=60 * 60)])
    store.stats.add_counts([tally(MAIL, age_seconds=24 * 3_600)])
    found = throughput()
    assert found.last_hour.completed == 0
    assert found.last_day.completed == 1
    assert [kind.name for kind in found.types] == [SHIP]


def test_types_are_sorted_by_their_mean_duration_without_crashes(store):
    store.stats.add_counts(
        [
            tally("quick", completed=10, seconds=1, longest_seconds=0.5),
            tally("slow", completed=1, failed=1, crashed=8, seconds=6, longest_seconds=4),
            tally("crashing", crashed=3),
        ]
    )
    assert throughput().types == (
        TypeRuns("slow", 1, 9, 0, 3.0, 4.0),
        TypeRuns("quick", 10, 0, 0, 0.1, 0.5),
        TypeRuns("crashing", 0, 3, 0, 0.0, 0.0),
    )


def test_the_number_of_types_is_limited(store):
    many = range(MAX_TYPES + 20)
    store.stats.add_counts(
        [tally(f"type-{place}", completed=1, seconds=place, longest_seconds=place) for place in many]
    )
    found = throughput()
    assert [kind.mean_seconds for kind in found.types] == [float(place) for place in reversed(many)][:MAX_TYPES]
    assert found.last_hour.completed == len(many)


def test_the_last_minute_is_complete_and_longer_periods_are_sums(store):
    put_clock(store, minute=30, second=10)
    old = tally(failed=2, jobs_failed=1, age_seconds=7_200)
    store.stats.add_counts([tally(completed=5), tally(completed=7, age_seconds=60), old])
    for found in (throughput(), throughput(hours=168)):
        assert found.last_minute == AttemptTotals(found.minutes[-2].starts_at, 7, 0, 0)
        assert found.last_hour == AttemptTotals(found.minutes[0].starts_at, 12, 0, 0)
        assert found.last_day == AttemptTotals(found.hours[-24].starts_at, 12, 2, 1)


def test_up_to_a_week_of_hours_can_be_read(store):
    store.stats.add_counts([tally(age_seconds=days * 86_400) for days in range(8)])
    found = throughput(hours=168)
    assert (len(found.hours), sum_totals(found.hours).completed) == (168, 7)
    assert [(kind.name, kind.completed) for kind in found.types] == [(SHIP, 7)]
    for hours in (23, 169):
        with pytest.raises(ValueError, match=f"hours={hours} is not a whole number from 24 to 168"):
            throughput(hours=hours)


def test_the_hours_of_a_type_or_a_queue_are_read_by_index(store):
    store.stats.add_counts([tally(failed=3, jobs_failed=1, queue="mail", age_seconds=3_600), tally(), tally(MAIL)])
    for of, expected in (
        ({"type_name": SHIP}, [(0, 3, 1), (1, 0, 0)]),
        ({"queue": "default"}, [(0, 0, 0), (2, 0, 0)]),
        ({"queue": "mail"}, [(0, 3, 1), (0, 0, 0)]),
        ({"type_name": "unknown"}, [(0, 0, 0)] * 2),
    ):
        hours, now = hourly_totals(store.using, 24, **of)
        assert len(hours) == 24
        assert [(hour.completed, hour.failed, hour.jobs_failed) for hour in hours[-2:]] == expected
        assert timedelta(0) <= now - hours[-1].starts_at < timedelta(hours=1)


def test_it_takes_three_statements_however_many_rows_there_are(store, django_assert_max_num_queries):
    store.stats.add_counts([tally(f"type-{place % 50}", age_seconds=place * 60.0) for place in range(500)])
    with django_assert_max_num_queries(3):
        assert throughput().last_day.completed == 500
    assert async_to_sync(athroughput)().types == throughput().types


def test_one_call_deletes_a_limited_number_of_old_rows(store, monkeypatch):
    monkeypatch.setattr("django_jobchains.store.stats.PRUNE_LIMIT", 3)
    store.stats.add_counts([tally(age_seconds=86_400 + 60.0 * minute) for minute in range(4)])
    assert [store.stats.prune_counts() for _ in range(2)] == [3, 1]


# Plans


@pytest.fixture
def _busy_days(store):
    """Create counts of eight days, for 50 types in every hour."""
    if connection.vendor == "postgresql":  # The planner avoids an index with many rows that earlier tests have deleted.
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {AttemptCount._meta.db_table}")
    now = store.stats.time_ago(0).replace(minute=0, second=0, microsecond=0)
    counts = {"completed": 1, "failed": 1, "seconds": 1.0, "longest_seconds": 1.0}
    hours = [
        AttemptCount(span=3_600, starts_at=now - timedelta(hours=back), type_name=f"type-{number}", **counts)
        for back in range(8 * 24)
        for number in range(50)
    ]
    minutes = [
        AttemptCount(span=60, starts_at=now - timedelta(minutes=back), type_name="", **counts) for back in range(120)
    ]
    AttemptCount.objects.bulk_create(hours + minutes)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {AttemptCount._meta.db_table}")


@pytest.mark.postgresql
@pytest.mark.usefixtures("_busy_days")
@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_it_reads_only_the_shown_hours_by_index(store, mode):
    use_plans(mode)
    found = [node for node in plan_of(throughput) if node.get("Relation Name") == AttemptCount._meta.db_table]
    assert found
    assert {node["Node Type"] for node in found} <= {"Index Scan", "Bitmap Heap Scan", "Index Only Scan"}
    assert sum(map(rows_read, found)) <= 60 + 2 * 24 * 50


@pytest.mark.postgresql
@pytest.mark.usefixtures("_busy_days")
@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_the_hours_of_a_type_are_probed(store, mode):
    use_plans(mode)
    found = plan_of(lambda: hourly_totals(store.using, 168, type_name="type-7"))
    counts = [node for node in found if node.get("Relation Name") == AttemptCount._meta.db_table]
    assert counts
    assert sum(map(rows_read, counts)) <= 2 * 168


@pytest.mark.usefixtures("_busy_days")
def test_it_uses_the_index_on_sqlite(store):
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL has its own test of plans")
    with CaptureQueriesContext(connection) as queries:
        throughput()
    with connection.cursor() as cursor:
        for query in queries.captured_queries[1:]:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plan = " ".join(row[-1] for row in cursor.fetchall())
            assert "(span=? AND starts_at>? AND starts_at<?)" in plan
            assert "SCAN ended" not in plan
