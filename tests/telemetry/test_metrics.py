"""What the metrics count. The telemetry reference lists their names, units and attributes."""

import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_jobchains import chains, limits
from django_jobchains.records import RecordProcessor
from django_jobchains.telemetry import names, probes, report
from django_jobchains.telemetry.events import (
    AttemptEnded,
    BlockedJobsSwept,
    ChainEnded,
    JobCreated,
    RecordHookEnded,
    ScheduleFired,
    TicksDropped,
)
from django_jobchains.telemetry.otel import metrics, register_gauges
from tests.records.models import Export, Upload
from tests.support.attempts import committed
from tests.support.waiting import until
from tests.telemetry.test_events import COUNTED, A

pytestmark = committed

HOUR = timedelta(hours=1)
MEASUREMENT = probes.Measurement(names.OLDEST_TRANSACTION, ("default",), 1.0)
DATA = {"counter": "Sum", "updowncounter": "Sum", "gauge": "Gauge", "histogram": "Histogram"}
#: SQLite does not report the oldest transaction.
UNKNOWN = {names.OLDEST_TRANSACTION} if connection.vendor == "sqlite" else set()
EXPECTED = {metric.name: metric for metric in names.METRICS if metric not in UNKNOWN}
TYPE, QUEUE, OUTCOME, ERROR = names.JOB_TYPE, names.QUEUE, names.OUTCOME, names.ERROR_TYPE
#: What OpenTelemetry's conventions require.
SEND, PROCESS = (
    {"messaging.system": "django_jobchains", "messaging.operation.name": operation} for operation in ("send", "process")
)


def uploads(processors, **options):
    """Register a record worker that does nothing."""
    processors.records(Upload, **options)(lambda record, run: None)


class WithChildren:
    """A worker with child processes."""

    using = "default"

    def slot_counts(self):
        return []

    def slot_peaks(self):
        return {}

    def pool_counts(self):
        return [probes.PoolCount("process", "images", idle=1, busy=3, waiting=2, memory_bytes=1000)]

    def notifier_state(self):
        return probes.NotifierState("Redis", True)


@contextmanager
def open_transaction():
    """Hold a transaction open, whose age is a metric. On SQLite, it would delay the worker."""
    if connection.vendor == "sqlite":
        yield
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        yield


#: Events about schedules, with the outcome and the number of ticks that they count.
TICKS = [
    (ScheduleFired("w", "nightly", "ship", A, datetime(2026, 6, 1, tzinfo=UTC), 0.25), "fired", 1),
    (TicksDropped("w", "nightly", "ship", "skipped", 2), "skipped", 2),
    (TicksDropped("w", "nightly", "ship", "missed", 3), "missed", 3),
]


def test_ticks_of_schedules_are_counted(recorded):
    for event, *_ in TICKS:
        report(event)
    outcomes = recorded.values("jobchains.schedule.ticks")
    assert [(found["jobchains.schedule.outcome"], count) for found, count in outcomes] == [
        (outcome, count) for _, outcome, count in TICKS
    ]
    of_schedule = {"jobchains.schedule.name": "nightly", "jobchains.job.type": "ship"}
    assert recorded.values("jobchains.schedule.missed") == [(of_schedule, 3)]


@pytest.fixture
def everything(recorded, processors, start_worker, add_worker, settings):
    """The metrics of a worker after everything that is counted has happened."""
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.05, "TIMEOUT_SECONDS": 0.1}
    release = threading.Event()

    @processors.register("ship")
    def ship(job):
        if job.input == "fail":
            raise ValueError("no")
        if job.input == "lose":
            chains.complete(job.chain_id)
        if job.input == "hang":
            release.wait(60)
        return job.continue_with("ship", "end") if job.input == "continue" else None

    @processors.records(Upload)
    class Convert(RecordProcessor):
        def pre_handle(self, record): ...

        def handle(self, record, run): ...

    Upload.objects.create()
    limits.set(queue="mail", concurrency=5)
    for what in ("end", "continue", "lose", "hang"):
        ship.enqueue(what)
    ship.enqueue("fail", max_attempts=1)
    ship.enqueue("hang", max_attempts=1)
    with open_transaction():
        start_worker(slots=4)
        for event, *_ in (*COUNTED, *TICKS):
            report(event)
        add_worker(WithChildren())
        try:
            until(lambda: recorded.values("jobchains.slot.stuck"))
            wanted = {"completed", "continued", "failed", "abandoned"}
            until(lambda: wanted <= {found[OUTCOME] for found, _ in recorded.values("jobchains.attempt.ended")})
            return until(lambda: (found := recorded.metrics()).keys() >= EXPECTED.keys() and found)
        finally:
            release.set()


def test_names_units_kinds_and_attributes(everything):
    assert everything.keys() == EXPECTED.keys()
    for name, metric in EXPECTED.items():
        found = everything[name]
        assert (found.unit, type(found.data).__name__) == (metric.unit, DATA[metric.kind]), name
        attributes = set().union(*(dict(point.attributes) for point in found.data.data_points))
        expected = {*names.CONSTANTS.get(metric, ()), *metric.attributes}
        assert attributes - {ERROR} == expected - {ERROR}, name
        assert attributes <= expected, name
        if metric.kind == "histogram":
            assert found.data.data_points[0].explicit_bounds == pytest.approx(names.BUCKETS)


def test_no_attribute_holds_an_id(everything):
    points = [point for metric in everything.values() for point in metric.data.data_points]
    values = {str(value) for point in points for value in dict(point.attributes).values()}
    assert not [value for value in values if ":" in value]
    assert not [value for value in values if any(part.isdigit() and len(part) > 3 for part in value.split("-"))]


def test_the_values_of_an_attribute_are_limited(recorded, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_VALUES", 3)
    for number in range(10):
        error = type(f"Error{number}", (Exception,), {})("no")
        report(AttemptEnded("w", A, A, f"type-{number}", 1, "failed", 1.0, "", None, error, f"q{number}"))
    for name in ("messaging.process.duration", "messaging.client.consumed.messages", "jobchains.attempt.ended"):
        for key in (TYPE, QUEUE, ERROR):
            found = {attributes[key] for attributes, _ in recorded.values(name) if key in attributes}
            assert len(found) in (0, 4), (name, key, found)
            assert not found or "_OTHER" in found


def test_what_is_counted(recorded, processors, ship, start_worker):
    @processors.register("pay")
    def pay(job):
        if job.attempt == 1:
            raise ValueError("no")
        return job.continue_with("ship")

    pay.enqueue()
    start_worker()
    until(lambda: recorded.values("jobchains.chain.duration"))
    of_pay, of_ship = ({TYPE: name, QUEUE: "default"} for name in ("pay", "ship"))
    assert recorded.values("messaging.client.sent.messages") == [({**SEND, **of_pay}, 1), ({**SEND, **of_ship}, 1)]
    consumed = [({**PROCESS, **of_pay}, 2), ({**PROCESS, **of_ship}, 1)]
    assert recorded.values("messaging.client.consumed.messages") == consumed
    assert recorded.values("jobchains.job.wait.duration") == [(of_pay, 1), (of_ship, 1)]
    assert recorded.values("jobchains.attempt.ended") == [
        ({TYPE: "pay", OUTCOME: "retried"}, 1),
        ({TYPE: "pay", OUTCOME: "continued"}, 1),
        ({TYPE: "ship", OUTCOME: "completed"}, 1),
    ]
    assert recorded.values("messaging.process.duration") == [
        ({**PROCESS, **of_pay, OUTCOME: "retried", ERROR: "ValueError"}, 1),
        ({**PROCESS, **of_pay, OUTCOME: "continued"}, 1),
        ({**PROCESS, **of_ship, OUTCOME: "completed"}, 1),
    ]
    chains.cancel(ship.enqueue(delay=3600))
    of_chain = [({names.CHAIN_TYPE: "pay", names.CHAIN_STATUS: "completed"}, 1)]
    of_chain += [({names.CHAIN_TYPE: "ship", names.CHAIN_STATUS: "cancelled"}, 1)]  # without a worker
    assert recorded.values("jobchains.chain.duration") == of_chain


def test_records_are_counted_with_their_hooks_and_their_wait(recorded, processors, make_worker):
    @processors.records(Upload, max_attempts=2, retry_after=0)
    class Convert(RecordProcessor):
        def pre_handle(self, record):
            if not record.num_failures:
                raise ValueError("no")

        def handle(self, record, run): ...

        def post_handle(self, record): ...

    Upload.objects.create(queued_at=timezone.now() - 2 * HOUR, process_after=timezone.now() - HOUR)
    make_worker().run_until_idle()
    of_type = {TYPE: "records.upload"}
    of_queue = {**of_type, QUEUE: "default"}
    failed, succeeded = ({**of_type, names.HOOK: "pre_handle", **more} for more in ({ERROR: "ValueError"}, {}))
    post = {**of_type, names.HOOK: "post_handle"}
    hooks = [(failed, 1), (post, 2), (succeeded, 1)]
    assert sorted(recorded.values("jobchains.record.hook.duration"), key=str) == sorted(hooks, key=str)
    assert recorded.values("messaging.process.duration") == [
        ({**PROCESS, **of_queue, OUTCOME: "errored", ERROR: "ValueError"}, 1),
        ({**PROCESS, **of_queue, OUTCOME: "completed"}, 1),
    ]
    assert recorded.values("messaging.client.consumed.messages") == [({**PROCESS, **of_queue}, 2)]
    [wait] = recorded.metrics()["jobchains.job.wait.duration"].data.data_points
    assert (dict(wait.attributes), wait.count) == (of_queue, 1)
    assert HOUR.total_seconds() <= wait.sum < 2 * HOUR.total_seconds()


def test_the_wait_is_unknown_if_the_queryset_defers_its_times(recorded, processors, make_worker):
    uploads(processors, queryset=Upload.objects.defer("queued_at"))
    Upload.objects.create()
    make_worker().run_until_idle()
    assert recorded.values("messaging.process.duration")
    assert recorded.values("jobchains.job.wait.duration") == []


def test_operations_on_records_are_measured(recorded, processors, start_worker, settings):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05}

    def operations():
        found = recorded.values("messaging.client.operation.duration")
        return {each["messaging.operation.name"] for each, _ in found if each.get(TYPE) == "records.upload"}

    @processors.records(Upload, stalled_after=60, heartbeat_every=0.05)
    def upload(record, run):
        until(lambda: "record_heartbeat" in operations())

    Upload.objects.create()
    start_worker()
    until(lambda: {"record_dequeue", "record_heartbeat", "record_end", "record_reset"} <= operations())


# Gauges


def test_gauges_about_queues_come_from_workers_and_from_processes_that_register_them(recorded, processors):
    ship = processors.register("ship", queue="parcels")(lambda job: None)
    ship.enqueue()
    ship.enqueue(delay=60)
    assert recorded.values("jobchains.queue.jobs") == []
    gauges = register_gauges(recorded.meters)
    try:
        figures = until(lambda: recorded.values("jobchains.queue.jobs"))
        [(attributes, age)] = until(lambda: recorded.values("jobchains.queue.oldest_due.age"))
    finally:
        gauges.close()
    found = {attributes[names.JOB_STATUS]: value for attributes, value in figures}
    assert found == {"due": 1, "scheduled": 1, "blocked": 0, "running": 0}
    assert (attributes, age > 0) == ({QUEUE: "parcels", names.DATABASE: "default"}, True)
    assert recorded.values("jobchains.queue.jobs") == []


def test_gauges_show_the_records_of_each_worker_and_their_age(recorded, processors):
    uploads(processors, queue="files", retry_after=60)
    now = timezone.now()
    for state in ("queued", "processing", "failed", "failed", "completed"):
        Upload.objects.create(state=state, queued_at=now - HOUR)
    Upload.objects.create(process_after=now + HOUR)
    for ended in (now - HOUR, now):
        Upload.objects.create(state="errored", finished_at=ended)
    processors.records(Export)(lambda record, run: None)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE records_export RENAME TO not_migrated")
    gauges = register_gauges(recorded.meters)
    try:
        figures = until(lambda: recorded.values("jobchains.queue.records"))
        [(attributes, age)] = recorded.values("jobchains.queue.oldest_record.age")
    finally:
        gauges.close()
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE not_migrated RENAME TO records_export")
    found = {each.pop(names.JOB_STATUS): value for each, value in figures}
    assert found == {"due": 2, "queued": 4, "processing": 1, "errored": 2, "failed": 2}
    assert attributes == figures[0][0] == {QUEUE: "files", TYPE: "records.upload", names.DATABASE: "default"}
    assert HOUR.total_seconds() <= age < 2 * HOUR.total_seconds()


def test_the_most_slots_in_use_in_the_last_minute_are_reported_to_each_reader(
    recorded, processors, ship, start_worker, monkeypatch
):
    @processors.register("sail")
    async def sail(job): ...

    start_worker()
    chains.wait(ship.enqueue(), 60)
    chains.wait(sail.enqueue(), 60)
    kinds = [{names.SLOT_KIND: kind} for kind in ("thread", "async")]
    for _ in range(2):
        assert recorded.values("jobchains.worker.slots.peak") == [(kind, 1) for kind in kinds]
    monkeypatch.setattr(probes, "PEAK_SECONDS", 0)
    until(lambda: recorded.values("jobchains.worker.slots.peak") == [(kind, 0) for kind in kinds])


@pytest.fixture
def no_peaks(recorded, monkeypatch):
    """Forget the handlers of earlier tests."""
    monkeypatch.setattr(probes.record_peaks, "_recent", probes.RecentPeaks())
    peaks(recorded)


def peaks(recorded):
    found = {attributes[TYPE]: peak for attributes, peak in recorded.values("jobchains.record.handlers.peak")}
    return {name: found[name] for name in ("records.upload", "records.export") if name in found}


@pytest.mark.usefixtures("no_peaks")
def test_the_most_handlers_of_records_at_once_are_reported_by_type(recorded, processors, make_worker, monkeypatch):
    together = threading.Barrier(2)

    @processors.records(Upload)
    def upload(record, run):
        if record.pk in pair:
            together.wait(60)

    @processors.records(Export)
    async def export(record, run): ...

    pair = [Upload.objects.create().pk for _ in range(2)]
    Upload.objects.create()
    Export.objects.create()
    make_worker(slots=2).run_until_idle()
    for _ in range(2):
        assert peaks(recorded) == {"records.upload": 2, "records.export": 1}
    monkeypatch.setattr(probes, "PEAK_SECONDS", 0)
    assert peaks(recorded) == {"records.upload": 0, "records.export": 0}


@pytest.mark.usefixtures("no_peaks")
def test_hooks_are_not_handlers_that_run_at_once(recorded, processors, make_worker):
    is_in_hook, is_handled = threading.Event(), threading.Event()

    @processors.records(Upload)
    class Convert(RecordProcessor):
        def pre_handle(self, record):
            if record == second:
                is_in_hook.wait(60)

        def handle(self, record, run):
            if record == second:
                is_handled.set()

        def post_handle(self, record):
            if record == first:
                is_in_hook.set()
                is_handled.wait(60)

    first, second = Upload.objects.create(), Upload.objects.create()
    make_worker(slots=2).run_until_idle()
    assert peaks(recorded)["records.upload"] == 1


def test_the_child_processes_of_all_workers_are_added_up(recorded, add_worker):
    add_worker(WithChildren())
    add_worker(WithChildren())
    pool = {"jobchains.pool.level": "process", "jobchains.pool.key": "images"}
    assert recorded.values("jobchains.pool.children") == [
        ({**pool, "jobchains.pool.state": "idle"}, 2),
        ({**pool, "jobchains.pool.state": "busy"}, 6),
    ]
    assert recorded.values("jobchains.pool.waiting") == [(pool, 4)]
    assert recorded.values("jobchains.pool.memory") == [(pool, 2000)]


def test_the_figures_are_read_once_in_ten_seconds(monkeypatch):
    reads = []
    monkeypatch.setattr(probes, "measure", lambda using: reads.append(1) or [MEASUREMENT])
    figures = probes.CachedMeasurements(wait_seconds=30)
    assert figures.get() == figures.get() == [MEASUREMENT]
    assert len(reads) == 1
    monkeypatch.setattr(probes, "CACHE_SECONDS", 0.0)
    until(lambda: figures.get() and len(reads) > 1)  # repeated, because the first thread may not have ended yet


@pytest.fixture
def slow_database(monkeypatch):
    """A database that is measured in ``seconds`` of a simulated clock."""

    class SlowDatabase:
        now, seconds = 0.0, 0.0

    class Thread:
        def __init__(self, target, **kwargs):
            self._target = target

        def start(self):
            self._ends_at = SlowDatabase.now + SlowDatabase.seconds

        def is_alive(self):
            self.join(0)
            return self._target is not None

        def join(self, timeout):
            SlowDatabase.now += min(timeout, max(self._ends_at - SlowDatabase.now, 0))
            if self._target and SlowDatabase.now >= self._ends_at:
                self._target()
                self._target = None

    monkeypatch.setattr(probes, "time", SimpleNamespace(monotonic=lambda: SlowDatabase.now))
    monkeypatch.setattr(probes, "threading", SimpleNamespace(Thread=Thread, Lock=threading.Lock))
    monkeypatch.setattr(probes, "measure", lambda using: [MEASUREMENT])
    return SlowDatabase


@pytest.mark.parametrize(
    ("seconds", "waited", "first", "others"),
    [(0.5, 0.5, [MEASUREMENT], [MEASUREMENT]), (5, 1, [], [MEASUREMENT]), (float("inf"), 1, [], [])],
)
def test_the_gauges_of_a_collection_wait_together_for_a_slow_database(slow_database, seconds, waited, first, others):
    slow_database.seconds = seconds
    figures = probes.CachedMeasurements()
    for expected in (first, others, others):
        started = slow_database.now
        assert [figures.get() for gauge in range(10)] == [expected] * 10
        assert slow_database.now - started <= waited
        slow_database.now += 61


def test_the_gauges_wait_for_several_slow_databases_together(recorded, add_worker, slow_database):
    slow_database.seconds = float("inf")
    for using in ("default", "other"):
        worker = WithChildren()
        worker.using = using
        add_worker(worker)
    recorded.values("jobchains.pool.waiting")
    assert slow_database.now == 1


def test_old_figures_are_not_reported(slow_database):
    figures = probes.CachedMeasurements()
    assert figures.get() == [MEASUREMENT]
    slow_database.seconds = float("inf")
    slow_database.now += probes.STALE_SECONDS
    assert figures.get() == []


def test_figures_that_cannot_be_read_are_tried_and_logged_once_in_ten_seconds(monkeypatch, caplog):
    def measure(using):
        raise OperationalError("connection failed: password=s3cret")

    monkeypatch.setattr(probes, "measure", measure)
    figures = probes.CachedMeasurements(wait_seconds=30)
    assert [figures.get() for gauge in range(8)] == [[]] * 8
    [logged] = caplog.messages
    assert "could not be read for gauges: OperationalError: connection failed" in logged
    assert "s3cret" not in logged


def test_stranded_jobs_stay_visible_although_the_sweep_that_found_them_unblocked_them(recorded, ship, start_worker):
    start_worker()
    report(BlockedJobsSwept("w", 2, ()))
    report(BlockedJobsSwept("w", 0, ()))
    assert recorded.values("jobchains.blocked.stranded") == [({}, 2)]


# Shares of durations

LIMIT = metrics.MAX_RECORDS_PER_SECOND


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.5

    monkeypatch.setattr(metrics.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def tally():
    return metrics.Tally(lambda counts: None)


def test_of_many_durations_an_even_share_is_recorded_from_the_first_second_on(clock, tally):
    assert all(tally.add(("ship", "completed")) for _ in range(LIMIT))
    clock.now += 2
    assert sum(len(tally.add(("ship", "completed"))) for _ in range(100 * LIMIT)) < 10 * LIMIT
    clock.now += 1
    # The first duration in a second is recorded, however many there were before.
    assert tally.add(("ship", "completed"))
    taken = [len(tally.add(("ship", "completed"))) for _ in range(100 * LIMIT)]
    assert LIMIT / 2 <= sum(taken) <= LIMIT
    assert sum(taken[: 50 * LIMIT]) == pytest.approx(sum(taken) / 2, abs=1)


def test_rare_values_do_not_vanish_among_frequent_ones(clock, tally):
    for _ in range(5):
        clock.now += 1
        taken = {(name, number): len(tally.add((name, "completed"))) for number in range(5000) for name in ("a", "b")}
        assert tally.add(("a", "failed"))
        assert tally.add(("rare", "completed"))
    assert 4 <= sum(taken["a", number] for number in range(5000)) <= LIMIT / 4 + 1


def test_the_durations_of_a_second_are_limited_for_all_values_together(clock, tally):
    kinds = [(f"type-{number}",) for number in range(3 * LIMIT)]
    for _ in range(3):
        clock.now += 1
        taken = [len(tally.add(kind)) for _ in range(100) for kind in kinds]
    assert sum(taken) == len(kinds)  # one of each


def test_events_that_are_counted_together_are_chosen_as_if_they_were_counted_one_by_one(clock, tally):
    together = metrics.Tally(lambda counts: None)
    for _ in range(3):
        clock.now += 1
        for count in (1, 7, 200, 3, 200):
            one_by_one = [index for index in range(count) if tally.add(("ship",))]
            assert list(together.add(("ship",), count)) == one_by_one


def test_a_collection_counts_each_event_once(recorded, clock):
    for second in range(3):
        clock.now = 100.0 + second
        for _ in range(2):
            report(JobCreated("", A, A, "ship", "mail", 0, False))
            [(_, count)] = recorded.values("messaging.client.sent.messages")
        assert count == 2 * (second + 1)


def test_types_and_outcomes_that_are_rare_are_in_the_histograms(recorded, clock):
    for name, ending, attempts in (("ship", "completed", 500), ("ship", "failed", 1), ("pay", "completed", 1)):
        for _ in range(attempts):
            report(AttemptEnded("w", A, A, name, 1, ending, 1.0, "", None, None, "q"))
            report(ChainEnded("w", A, name, ending, 1.0))
            report(RecordHookEnded("w", name, "pre_handle", 1.0, "" if ending == "completed" else "ValueError"))
    for metric, keys, usual, unusual in (
        ("messaging.process.duration", (TYPE, OUTCOME), "completed", "failed"),
        ("jobchains.chain.duration", (names.CHAIN_TYPE, names.CHAIN_STATUS), "completed", "failed"),
        ("jobchains.record.hook.duration", (TYPE, ERROR), None, "ValueError"),
    ):
        found = {tuple(map(attributes.get, keys)): count for attributes, count in recorded.values(metric)}
        assert (found["pay", usual], found["ship", unusual]) == (1, 1)
        assert found["ship", usual] < 500
    waits = {found[TYPE]: count for found, count in recorded.values("jobchains.job.wait.duration")}
    assert waits["pay"] == 1
    counts = {tuple(found.values()): count for found, count in recorded.values("jobchains.chain.ended")}
    assert counts["ship", "completed"] == 500
