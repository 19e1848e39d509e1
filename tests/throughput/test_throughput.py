"""What is told of the last hour and day, and that it is cheap."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains.models import AttemptCount
from django_jobchains.store import Store, get_store
from django_jobchains.throughput import MOST_TYPES, Ended, TypeRuns, athroughput, throughput
from tests.store.jobs import MAIL, SHIP
from tests.store.plans import plan_of, rows_read, use_plans
from tests.throughput.telling import put_clock, tally

pytestmark = pytest.mark.django_db


@pytest.fixture
def store(db: None) -> Iterator[Store]:
    store = get_store()
    yield store
    store.ahead_seconds = 0


def numbers(parts: tuple[Ended, ...]) -> list[tuple[int, int]]:
    return [(part.completed, part.failed) for part in parts]


def test_of_nothing_it_tells_sixty_minutes_and_a_day_of_zeros(store: Store) -> None:
    put_clock(store, minute=30, second=15)
    found = throughput()
    assert (numbers(found.minutes), numbers(found.hours), found.types) == ([(0, 0)] * 60, [(0, 0)] * 24, ())
    hour = found.now.replace(minute=0, second=0, microsecond=0)
    half = hour + timedelta(minutes=30)
    assert [part.starts_at for part in found.minutes] == [half - timedelta(minutes=back) for back in range(59, -1, -1)]
    assert [part.starts_at for part in found.hours] == [hour - timedelta(hours=back) for back in range(23, -1, -1)]
    assert found.now.tzinfo is UTC


def test_attempts_are_told_in_their_minute_and_hour(store: Store) -> None:
    put_clock(store, minute=30, second=10)
    store.add_counts([tally(completed=2, failed=1, crashed=4), tally(age_seconds=60), tally(age_seconds=3_500)])
    found = throughput()
    assert numbers(found.minutes)[-2:] == [(1, 0), (2, 5)]
    assert numbers(found.minutes)[0] == (1, 0)
    assert sum(completed for completed, _ in numbers(found.minutes)) == 4
    assert numbers(found.hours)[-2:] == [(1, 0), (3, 5)]


@pytest.mark.parametrize(("second", "age", "back"), [(0.5, 0.2, 1), (0.5, 1, 2), (59, 58, 1), (59, 60, 2)])
def test_the_database_s_clock_says_in_which_minute_an_attempt_ended(
    store: Store, second: float, age: float, back: int
) -> None:
    put_clock(store, minute=0, second=second)
    store.add_counts([tally(age_seconds=age)])
    found = throughput()
    assert numbers(found.minutes)[-back] == (1, 0)
    assert numbers(found.hours)[-back] == (1, 0), "The minute before the first is of the hour before."


def test_what_is_older_than_an_hour_or_a_day_is_not_told(store: Store) -> None:
    put_clock(store, minute=30, second=30)
    store.add_counts([tally(age_seconds=60 * 60)])
    store.add_counts([tally(MAIL, age_seconds=24 * 3_600)])
    found = throughput()
    assert found.last_hour.completed == 0
    assert found.last_day.completed == 1
    assert [kind.name for kind in found.types] == [SHIP]


def test_what_is_told_later_is_added(store: Store) -> None:
    put_clock(store, minute=30, second=30)
    for longest in (2.0, 5.0, 3.0):
        store.add_counts([tally(completed=1, failed=1, crashed=1, seconds=longest, longest_seconds=longest)])
    assert throughput().types == (TypeRuns(SHIP, 3, 6, 10 / 6, 5.0),)


def test_a_minute_is_one_row_and_an_hour_one_for_each_type(store: Store) -> None:
    put_clock(store, minute=30, second=30)
    for _ in range(2):
        store.add_counts([tally(SHIP), tally(MAIL, age_seconds=5), tally(MAIL, age_seconds=25)])
    minute, hour = AttemptCount.Span
    found = set(AttemptCount.objects.values_list("span", "type_name", "completed"))
    assert found == {(minute, "", 6), (hour, SHIP, 2), (hour, MAIL, 4)}


def test_the_slowest_types_come_first_by_their_mean_without_crashes(store: Store) -> None:
    store.add_counts(
        [
            tally("quick", completed=10, seconds=1, longest_seconds=0.5),
            tally("slow", completed=1, failed=1, crashed=8, seconds=6, longest_seconds=4),
            tally("crashing", crashed=3),
        ]
    )
    assert throughput().types == (
        TypeRuns("slow", 1, 9, 3.0, 4.0),
        TypeRuns("quick", 10, 0, 0.1, 0.5),
        TypeRuns("crashing", 0, 3, 0.0, 0.0),
    )


def test_no_more_than_the_slowest_types_are_told(store: Store) -> None:
    many = range(MOST_TYPES + 20)
    store.add_counts([tally(f"type-{place}", completed=1, seconds=place, longest_seconds=place) for place in many])
    found = throughput()
    assert [kind.mean_seconds for kind in found.types] == [float(place) for place in reversed(many)][:MOST_TYPES]
    assert found.last_hour.completed == len(many)


def test_the_last_minute_is_one_that_is_over_and_the_others_are_sums(store: Store) -> None:
    put_clock(store, minute=30, second=10)
    store.add_counts([tally(completed=5), tally(completed=7, age_seconds=60), tally(failed=2, age_seconds=7_200)])
    found = throughput()
    assert found.last_minute == Ended(found.minutes[-2].starts_at, 7, 0)
    assert found.last_hour == Ended(found.minutes[0].starts_at, 12, 0)
    assert found.last_day == Ended(found.hours[0].starts_at, 12, 2)


def test_it_is_three_statements_however_much_there_is(
    store: Store, django_assert_max_num_queries: Callable[..., object]
) -> None:
    store.add_counts([tally(f"type-{place % 50}", age_seconds=place * 60.0) for place in range(500)])
    with django_assert_max_num_queries(3):  # type: ignore[attr-defined]
        assert throughput().last_day.completed == 500


def test_the_async_twin_tells_the_same(store: Store) -> None:
    store.add_counts([tally()])
    assert async_to_sync(athroughput)().types == throughput().types


# Rows that go


def rows(span: AttemptCount.Span) -> set[datetime]:
    return set(AttemptCount.objects.filter(span=span).values_list("starts_at", flat=True))


def test_minutes_go_after_two_hours_and_hours_after_eight_days(store: Store) -> None:
    put_clock(store, minute=30, second=30)
    store.add_counts([tally(age_seconds=seconds) for seconds in (0, 7_000, 7_300, 8 * 86_400 - 3_600, 8 * 86_400)])
    assert store.prune_counts() == 4
    assert store.prune_counts() == 0
    now = store.time_ago(0).replace(second=0, microsecond=0)
    assert rows(AttemptCount.Span.MINUTE) == {now, now - timedelta(minutes=117)}
    hour = now.replace(minute=0)
    assert rows(AttemptCount.Span.HOUR) == {hour - timedelta(hours=back) for back in (0, 2, 8 * 24 - 1)}


def test_few_of_many_old_rows_go_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobchains.store.attempt_counts.PRUNE_LIMIT", 3)
    store.add_counts([tally(age_seconds=86_400 + 60.0 * minute) for minute in range(4)])
    assert store.prune_counts() == 3
    assert store.prune_counts() == 1


# Plans


@pytest.fixture
def _busy_days(store: Store) -> None:
    """Of eight days, 50 types in every hour."""
    now = store.time_ago(0).replace(minute=0, second=0, microsecond=0)
    counts: dict[str, Any] = {"completed": 1, "failed": 1, "seconds": 1.0, "longest_seconds": 1.0}
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
def test_it_reads_the_hours_it_shows_by_the_index_and_no_others(store: Store, mode: str) -> None:
    use_plans(mode)
    found = [node for node in plan_of(throughput) if node.get("Relation Name") == AttemptCount._meta.db_table]
    assert found
    assert {node["Node Type"] for node in found} <= {"Index Scan", "Bitmap Heap Scan", "Index Only Scan"}
    assert sum(map(rows_read, found)) <= 60 + 2 * 24 * 50


@pytest.mark.usefixtures("_busy_days")
def test_it_seeks_in_the_index(store: Store) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("told by PostgreSQL's own plans")
    with CaptureQueriesContext(connection) as queries:
        throughput()
    with connection.cursor() as cursor:
        for query in queries.captured_queries[1:]:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plan = " ".join(row[-1] for row in cursor.fetchall())
            assert "(span=? AND starts_at>? AND starts_at<?)" in plan
            assert "SCAN ended" not in plan
