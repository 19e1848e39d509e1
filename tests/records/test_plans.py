"""With a million finished records and many that are not ready, no statement of a worker reads the whole table."""

import pytest
from django.db import connection

from django_jobchains import records
from django_jobchains.declare.policies import Backoff
from django_jobchains.store import get_store
from django_jobchains.store.record_tables import RecordEnd
from django_jobchains.store.records import DequeueRequest
from tests.queries.reading import reading_of
from tests.records.models import Upload

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.timeout(600)]

COMPLETED = 1_000_000
#: The number of records that wait for their time, and also of records that errored just now.
WAITING = 100_000
READY = 2_000
RUNNING = 200
#: The limits of the rows that one node of a plan reads, and of thousands of steps of SQLite's virtual machine.
MAX_ROWS = 1_000
MAX_THOUSAND_STEPS = 200

_INSERT = """
    INSERT INTO records_upload (state, queued_at, finished_at, process_after, last_heartbeat_at, size, result,
        lease_number) SELECT '{state}', {now}, {finished_at}, {process_after}, {now}, 0, '', 1 FROM {numbers}
"""


def add(cursor, count, state, *, finished_at="NULL", process_after="NULL"):
    is_server = connection.vendor == "postgresql"
    now = "now()" if is_server else "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
    later = "now() + interval '1 hour'" if is_server else "strftime('%Y-%m-%d %H:%M:%f000', 'now', '1 hour')"
    numbers = (
        f"generate_series(1, {count})"
        if is_server
        else f"(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n)"
    )
    times = {"now": now, "later": later, "NULL": "NULL"}
    sql = _INSERT.format(
        state=state, now=now, finished_at=times[finished_at], process_after=times[process_after], numbers=numbers
    )
    cursor.execute(sql)


@pytest.fixture(scope="module", autouse=True)
def _many(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            add(cursor, COMPLETED, "completed", finished_at="now")
            add(cursor, WAITING, "queued", process_after="later")
            add(cursor, WAITING, "errored", finished_at="now")
            add(cursor, READY, "queued")
            add(cursor, READY, "queued", process_after="now")
            add(cursor, RUNNING, "processing")
            cursor.execute("ANALYZE records_upload")
        yield
        Upload.objects.all().delete() if connection.vendor == "sqlite" else truncate()
        connection.close()


def truncate():
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE records_upload")


@pytest.fixture
def kind(processors):
    processors.records(Upload, retry_after=3600)(lambda record, run: None)
    return processors.record_types["records.upload"]


def assert_reads_little(call):
    reading = reading_of(call)
    plan = "\n".join(reading.plan)
    assert not reading.scans, plan
    assert reading.rows < MAX_ROWS, plan
    assert reading.steps < MAX_THOUSAND_STEPS, plan


@pytest.mark.parametrize("prefers_planned", [True, False])
@pytest.mark.parametrize("limit", [1, 50])
def test_a_dequeue_is_flat(kind, limit, prefers_planned):
    store = get_store()
    request = DequeueRequest(
        kind.select("default"), limit, "host", "default", kind.retry_seconds, prefers_planned=prefers_planned
    )
    table = kind.table("default")
    found = []
    assert_reads_little(lambda: found.extend(store.records.dequeue(table, request, joins_transaction=True)))
    assert len(found) == limit


def test_an_order_of_the_callers_reads_only_ready_records(processors):
    processors.records(Upload, retry_after=3600, order_by=["-size", "id"])(lambda record, run: None)
    kind = processors.record_types["records.upload"]
    request = DequeueRequest(kind.select("default"), 1, "host", "default", 3600, has_own_order=True)
    reading = reading_of(lambda: get_store().records.dequeue(kind.table("default"), request, joins_transaction=True))
    plan = "\n".join(reading.plan)
    assert not reading.scans, plan
    assert reading.rows < 3 * READY, plan
    assert reading.steps < MAX_THOUSAND_STEPS * 3, plan


def test_ends_heartbeats_and_resets_are_flat(kind):
    store, table = get_store(), kind.table("default")
    found = [(pk, 1) for pk in Upload.objects.filter(state="processing").values_list("pk", flat=True)[:100]]
    keys, others = found[:50], found[50:]
    assert_reads_little(lambda: store.records.beat(table, keys))
    assert_reads_little(lambda: store.records.check(table, keys))
    stalled = store.record_operations.stalled
    assert_reads_little(lambda: stalled(table, 100, stalled_seconds=3600))
    assert_reads_little(lambda: stalled(table, 100, stalled_seconds=0, held=[keys[0][0]]))
    options = {"max_resets": 3, "backoff": Backoff(), "message": "gone"}
    reset = store.record_operations.reset
    assert_reads_little(lambda: reset(table, others, stalled_seconds=0, **options))
    assert_reads_little(lambda: store.record_operations.cancel_flagged(table, 100))
    assert_reads_little(lambda: store.records.end(table, [RecordEnd(*key, "completed") for key in keys]))
    assert_reads_little(lambda: store.records.end(table, [RecordEnd(*keys[0], "completed")]))
    assert_reads_little(lambda: records.cancel(Upload.objects.filter(pk__in=[key[0] for key in keys])))


def test_waits_are_found_by_the_indexes(kind):
    found = records.queryset(Upload)
    reading = reading_of(found.max_duration_in_queue)
    assert not reading.scans, reading.plan
    assert reading.rows < 3 * READY, reading.plan
    assert_reads_little(lambda: found.exists_in(["failed", "processing", "queued"]))
    assert not reading_of(found.queued_count).scans


def test_the_counts_of_the_dashboard_stop_at_their_limit(kind):
    store, table = get_store(), kind.table("default")
    select = kind.select("default")
    assert_reads_little(lambda: store.records.count_by_state(table, select, 100))
    assert store.records.count_by_state(table, select, 100).queued == 100
