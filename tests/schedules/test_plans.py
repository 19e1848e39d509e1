"""What is due is found by an index, however many schedules there are."""

import pytest
from django.db import connection, transaction

from django_jobchains.models import Chain, Job, Schedule
from django_jobchains.store import get_store
from django_jobchains.store.schedules import FiredSchedule
from tests.support.jobs import create
from tests.support.plans import cost_of, indexes_of, plan_of, rows_read, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql]

#: Ten thousand schedules, of which fifty are due, and some are paused or have no tick any more. They are not in
#: the order of their names, as if many people had created them.
INSERT = """
    INSERT INTO django_jobchains_schedule (name, type_name, every_seconds, timezone, overlap, on_missed, max_catch_up,
        source, declarations, created_at, anchor_at, next_tick_at, paused_at)
    SELECT 's' || to_char(n, 'FM00000'), 'schedules.report', 3600, 'UTC', 'allow', 'run_once', 1, 'code', 'x', now(),
        now(), CASE WHEN n % 100 <> 1 THEN now() + n * interval '1 second' - interval '50 seconds' END,
        CASE WHEN n % 100 = 2 THEN now() END
    FROM generate_series(0, 9999) AS n ORDER BY md5(n::text)
"""


@pytest.fixture(params=["auto", "force_generic_plan"])
def store(request, db):
    use_plans(request.param)
    with connection.cursor() as cursor:
        cursor.execute(INSERT)
        cursor.execute("ANALYZE django_jobchains_schedule")
    return get_store()


def test_what_is_due_is_read_by_the_index(store):
    with transaction.atomic():
        found = plan_of(lambda: store.schedules.due(20))
    assert indexes_of(found) == {"jobchains_next_tick"}
    assert max(map(rows_read, found)) <= 25


def test_the_next_tick_is_read_by_the_index(store):
    found = plan_of(lambda: store.schedules.seconds_to_next(["s00000", "s00003"]))
    assert indexes_of(found) == {"jobchains_next_tick"}
    assert max(map(rows_read, found)) <= 5


def test_setting_next_ticks_reads_only_these_rows(store):
    with transaction.atomic():
        rows = store.schedules.due(20)
        found = plan_of(lambda: store.schedules.fired([FiredSchedule(row.name, row.now) for row in rows]))
    scans = [node for node in found if "Scan" in node["Node Type"] and "Relation Name" in node]
    assert sum(map(rows_read, scans)) <= 25


def test_the_history_of_a_schedule_is_read_by_its_index(store):
    create(store, 2_000)  # An empty table may be read as a whole, once its statistics say that it is empty.
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Job._meta.db_table}")
    found = plan_of(lambda: list(Chain.objects.of_schedule("s00000").page(limit=10)))
    assert "jobchains_schedule" in indexes_of(found)


@pytest.mark.parametrize("call", ["due", "seconds_to_next"])
def test_the_cost_does_not_depend_on_the_number_of_schedules(store, call):
    calls = {"due": lambda: store.schedules.due(1), "seconds_to_next": store.schedules.seconds_to_next}
    calls[call]()
    many = cost_of(calls[call])
    Schedule.objects.filter(name__gt="s00100").delete()
    few = cost_of(calls[call])
    assert many <= few + 5
