"""The metrics: their names, units and attributes, which dashboards and alerts rely on, and what they count."""

import logging
import threading
from contextlib import contextmanager
from uuid import UUID

import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.records import RecordProcessor
from django_jobchains.telemetry import events, names, probes, report
from django_jobchains.telemetry.events import AttemptEnded, BlockedJobsSwept, ChainEnded, Event, RecordHookEnded
from django_jobchains.telemetry.otel import metrics, register_gauges
from tests.records.models import Upload
from tests.support.attempts import committed
from tests.support.waiting import until

pytestmark = committed

MEASUREMENT = probes.Measurement(names.OLDEST_TRANSACTION, (), 1.0)

TYPE, QUEUE, OUTCOME, ERROR = (
    "jobchains.job.type",
    "messaging.destination.name",
    "jobchains.job.outcome",
    "error.type",
)
#: The id of a job.
A = UUID(int=0)
#: The unit, the kind, and the attributes of each metric.
EXPECTED = {
    "messaging.client.sent.messages": ("{message}", "Sum", {TYPE, QUEUE}),
    "messaging.client.consumed.messages": ("{message}", "Sum", {TYPE, QUEUE}),
    "messaging.process.duration": ("s", "Histogram", {TYPE, QUEUE, OUTCOME, ERROR}),
    "messaging.client.operation.duration": ("s", "Histogram", {"messaging.operation.name", TYPE, ERROR}),
    "jobchains.job.wait.duration": ("s", "Histogram", {TYPE, QUEUE}),
    "jobchains.record.hook.duration": ("s", "Histogram", {TYPE, "jobchains.record.hook", ERROR}),
    "jobchains.chain.duration": ("s", "Histogram", {"jobchains.chain.type", "jobchains.chain.status"}),
    "jobchains.attempt.ended": ("{attempt}", "Sum", {TYPE, OUTCOME}),
    "jobchains.job.reaped": ("{job}", "Sum", {TYPE, OUTCOME}),
    "jobchains.lease.lost": ("{lease}", "Sum", {TYPE, "jobchains.reason"}),
    "jobchains.slot.stuck": ("{slot}", "Sum", {TYPE, "jobchains.reason"}),
    "jobchains.chain.ended": ("{chain}", "Sum", {"jobchains.chain.type", "jobchains.chain.status"}),
    "jobchains.blocked.failed": ("{job}", "Sum", {TYPE}),
    "jobchains.record.cancelled": ("{record}", "Sum", {TYPE}),
    "jobchains.outcome.delayed": ("{outcome}", "Sum", {TYPE}),
    "jobchains.child.crashed": ("{process}", "Sum", {TYPE}),
    "jobchains.child.killed": ("{process}", "Sum", {TYPE, "jobchains.reason"}),
    "jobchains.child.recycled": ("{process}", "Sum", {"jobchains.pool.level", "jobchains.pool.key"}),
    "jobchains.isolation.weakened": (
        "{failure}",
        "Sum",
        {"jobchains.isolation.requested", "jobchains.isolation.actual"},
    ),
    "jobchains.isolation.failed": ("{failure}", "Sum", {"jobchains.isolation.requested"}),
    "jobchains.thread.failed": ("{failure}", "Sum", {"jobchains.thread.name"}),
    "jobchains.process.ended": ("{process}", "Sum", {"jobchains.process.outcome"}),
    "jobchains.notifier.failed": ("{failure}", "Sum", {"jobchains.notifier.backend"}),
    "jobchains.codec.failed": ("{payload}", "Sum", {"messaging.operation.name", ERROR}),
    "jobchains.worker.slots": ("{slot}", "Sum", {"jobchains.slot.state", "jobchains.slot.kind"}),
    "jobchains.worker.slots.peak": ("{slot}", "Gauge", {"jobchains.slot.kind"}),
    "jobchains.record.handlers.peak": ("{record}", "Gauge", {TYPE}),
    "jobchains.pool.children": (
        "{process}",
        "Sum",
        {"jobchains.pool.level", "jobchains.pool.key", "jobchains.pool.state"},
    ),
    "jobchains.pool.waiting": ("{attempt}", "Sum", {"jobchains.pool.level", "jobchains.pool.key"}),
    "jobchains.pool.memory": ("By", "Sum", {"jobchains.pool.level", "jobchains.pool.key"}),
    "jobchains.queue.jobs": ("{job}", "Gauge", {QUEUE, "jobchains.job.status"}),
    "jobchains.queue.oldest_due.age": ("s", "Gauge", {QUEUE}),
    "jobchains.queue.records": ("{record}", "Gauge", {QUEUE, TYPE, "jobchains.job.status"}),
    "jobchains.queue.oldest_record.age": ("s", "Gauge", {QUEUE, TYPE}),
    "jobchains.blocked.stranded": ("{job}", "Gauge", set()),
    "jobchains.notifier.connected": ("1", "Gauge", {"jobchains.notifier.backend"}),
    "jobchains.database.oldest_transaction.age": ("s", "Gauge", set()),
}
#: SQLite does not report the oldest transaction.
ONLY_ON_SERVERS = {"jobchains.database.oldest_transaction.age"}
#: Each event with a counter, the name of its counter, and the attributes that it counts for. Several events may share
#: a counter.
COUNTED = [
    (
        events.JobCreated("", A, A, "ship", "mail", 0, False),
        "messaging.client.sent.messages",
        {TYPE: "ship", QUEUE: "mail"},
    ),
    (
        events.ChainEnded("", A, "ship", "failed", 1.0),
        "jobchains.chain.ended",
        {"jobchains.chain.type": "ship", "jobchains.chain.status": "failed"},
    ),
    (events.JobReaped("w", A, A, "ship", 1, "pending", 1), "jobchains.job.reaped", {TYPE: "ship", OUTCOME: "retried"}),
    (events.JobReaped("w", A, A, "ship", 1, "failed", 1), "jobchains.job.reaped", {TYPE: "ship", OUTCOME: "failed"}),
    (events.RecordReset("w", "1", "shop", "queued", 1), "jobchains.job.reaped", {TYPE: "shop", OUTCOME: "requeued"}),
    (events.RecordReset("w", "1", "shop", "failed", 1), "jobchains.job.reaped", {TYPE: "shop", OUTCOME: "failed"}),
    (
        events.AttemptStuck("w", A, "ship", "timed_out", 1, ""),
        "jobchains.slot.stuck",
        {TYPE: "ship", "jobchains.reason": "timed_out"},
    ),
    (
        events.AttemptStuck("w", "1", "shop", "timed_out", 1, "", "record"),
        "jobchains.slot.stuck",
        {TYPE: "shop", "jobchains.reason": "timed_out"},
    ),
    (events.BlockedJobFailed("", A, A, "ship", "no"), "jobchains.blocked.failed", {TYPE: "ship"}),
    (events.RecordCancelled("w", "1", "shop"), "jobchains.record.cancelled", {TYPE: "shop"}),
    (events.OutcomeDelayed("w", A, "ship", 9.0, ""), "jobchains.outcome.delayed", {TYPE: "ship"}),
    (events.ChildCrashed("w", A, "ship", 7, -9, "killed"), "jobchains.child.crashed", {TYPE: "ship"}),
    (
        events.ChildKilled("w", "1", "shop", 7, "timed_out"),
        "jobchains.child.killed",
        {TYPE: "shop", "jobchains.reason": "timed_out"},
    ),
    (
        events.ChildRecycled("w", "process", "images", 7),
        "jobchains.child.recycled",
        {"jobchains.pool.level": "process", "jobchains.pool.key": "images"},
    ),
    (
        events.IsolationWeakened("w", "process", "thread", "no"),
        "jobchains.isolation.weakened",
        {"jobchains.isolation.requested": "process", "jobchains.isolation.actual": "thread"},
    ),
    (
        events.IsolationFailed("w", "process", "no", 10.0),
        "jobchains.isolation.failed",
        {"jobchains.isolation.requested": "process"},
    ),
    (
        events.ThreadFailed("w", "claim-loop", "no", 1, False),
        "jobchains.thread.failed",
        {"jobchains.thread.name": "claim-loop"},
    ),
    (events.ProcessEnded("s", 1, 7, 0, None), "jobchains.process.ended", {"jobchains.process.outcome": "exited"}),
    (events.ProcessEnded("s", 1, 7, 1, None), "jobchains.process.ended", {"jobchains.process.outcome": "failed"}),
    (events.ProcessEnded("s", 1, 7, -9, 1.0), "jobchains.process.ended", {"jobchains.process.outcome": "killed"}),
    (
        events.ProcessNotStarted("s", 1, "no", 1.0),
        "jobchains.process.ended",
        {"jobchains.process.outcome": "not_started"},
    ),
    (events.ProcessNotReplaced("s", 1, "no"), "jobchains.process.ended", {"jobchains.process.outcome": "not_replaced"}),
    (
        events.NotifierFailed("", "Redis", "no", 1),
        "jobchains.notifier.failed",
        {"jobchains.notifier.backend": "Redis"},
    ),
    (
        events.CodecFailed("", "decode", "InvalidToken"),
        "jobchains.codec.failed",
        {"messaging.operation.name": "decode", ERROR: "InvalidToken"},
    ),
]
#: Warnings that another event or a gauge counts, or after which the process ends.
NOT_COUNTED = {events.AttemptAbandoned, events.SupervisorGaveUp}


@pytest.fixture
def everything(_of_project, recorded, processors, start_worker, settings, add_worker):
    """Return the metrics of a worker after everything that is counted has happened."""
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
    class Convert(RecordProcessor[Upload]):
        def pre_handle(self, record): ...

        def handle(self, record, run): ...

    Upload.objects.create()
    for what in ("end", "continue", "lose", "hang"):
        ship.enqueue(what)
    ship.enqueue("fail", max_attempts=1)
    ship.enqueue("hang", max_attempts=1)
    with open_transaction():
        start_worker(slots=4)
        for event, _, _ in COUNTED:
            report(event)
        add_worker(WithChildren())
        try:
            until(lambda: recorded.values("jobchains.slot.stuck"))
            until(lambda: {"completed", "continued", "failed", "abandoned"} <= outcomes(recorded))
            return until(lambda: (found := recorded.metrics()).keys() >= expected_names() and found)
        finally:
            release.set()


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


def expected_names():
    return EXPECTED.keys() - (ONLY_ON_SERVERS if connection.vendor == "sqlite" else set())


@contextmanager
def open_transaction():
    """Hold a transaction open, whose age is a metric. On SQLite, it would delay the worker."""
    if connection.vendor == "sqlite":
        yield
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        yield


def worker_id():
    return "00000000-0000-0000-0000-000000000000"


def outcomes(recorded):
    return {attributes[OUTCOME] for attributes, _ in recorded.values("jobchains.attempt.ended")}


def test_names_units_kinds_and_attributes(everything):
    assert everything.keys() == expected_names()
    for name in expected_names():
        unit, kind, attributes = EXPECTED[name]
        metric = everything[name]
        assert (metric.unit, type(metric.data).__name__) == (unit, kind), name
        found = set().union(*(dict(point.attributes) for point in metric.data.data_points))
        assert found - {ERROR} == attributes - {ERROR}, name
        assert found <= attributes, name
        if kind == "Histogram":
            assert metric.data.data_points[0].explicit_bounds == pytest.approx(
                (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
            )


def test_no_attribute_holds_an_id(everything):
    values = {
        str(value)
        for metric in everything.values()
        for point in metric.data.data_points
        for value in dict(point.attributes).values()
    }
    assert not [value for value in values if any(part.isdigit() and len(part) > 3 for part in value.split("-"))]
    assert not [value for value in values if ":" in value]


def test_the_values_of_an_attribute_are_limited(recorded, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_VALUES", 3)
    for number in range(10):
        error = type(f"Error{number}", (Exception,), {})("no")
        report(AttemptEnded("w", *[worker_id()] * 2, f"type-{number}", 1, "failed", 1.0, "", None, error, f"q{number}"))
    for name in ("messaging.process.duration", "messaging.client.consumed.messages", "jobchains.attempt.ended"):
        for key in (TYPE, QUEUE, ERROR):
            found = {attributes[key] for attributes, _ in recorded.values(name) if key in attributes}
            assert len(found) in (0, 4), (name, key, found)
            assert not found or "_OTHER" in found


def test_what_is_counted(recorded, processors, start_worker):
    @processors.register("pay")
    def pay(job):
        if job.attempt == 1:
            raise ValueError("no")
        return job.continue_with("ship")

    @processors.register("ship")
    def ship(job): ...

    pay.enqueue()
    start_worker()
    until(lambda: recorded.values("jobchains.chain.duration"))
    of_pay, of_ship = ({TYPE: name, QUEUE: "default"} for name in ("pay", "ship"))
    assert recorded.values("messaging.client.sent.messages") == [(of_pay, 1), (of_ship, 1)]
    assert recorded.values("messaging.client.consumed.messages") == [(of_pay, 2), (of_ship, 1)]
    assert recorded.values("jobchains.job.wait.duration") == [(of_pay, 1), (of_ship, 1)]
    assert recorded.values("jobchains.attempt.ended") == [
        ({TYPE: "pay", OUTCOME: "retried"}, 1),
        ({TYPE: "pay", OUTCOME: "continued"}, 1),
        ({TYPE: "ship", OUTCOME: "completed"}, 1),
    ]
    assert recorded.values("messaging.process.duration") == [
        ({**of_pay, OUTCOME: "retried", ERROR: "ValueError"}, 1),
        ({**of_pay, OUTCOME: "continued"}, 1),
        ({**of_ship, OUTCOME: "completed"}, 1),
    ]
    [(attributes, _)] = recorded.values("jobchains.chain.duration")
    assert attributes == {"jobchains.chain.type": "pay", "jobchains.chain.status": "completed"}


@pytest.mark.parametrize(("event", "name", "attributes"), COUNTED)
def test_an_event_increments_its_counter(event, name, attributes, recorded):
    assert recorded.values(name) == []
    report(event)
    report(event)
    assert recorded.values(name) == [(attributes, 2)]


def test_every_counter_of_an_event_is_tested():
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert {type(event) for event, _, _ in COUNTED} == {kind for kind in kinds if kind.counter is not None}


def test_every_event_that_needs_a_person_has_a_counter():
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    urgent = {kind for kind in kinds if kind.level in (logging.WARNING, logging.ERROR)}
    assert {kind for kind in urgent if kind.counter is None} == NOT_COUNTED


def test_an_attempt_that_lost_its_lease_counts_by_its_reason(recorded):
    report(AttemptEnded("w", A, A, "ship", 1, "abandoned", 1.0, "", None, abandoned_reason="cancelled"))
    report(events.AttemptAbandoned("w", A, "cancelled"))
    assert recorded.values("jobchains.lease.lost") == [({TYPE: "ship", "jobchains.reason": "cancelled"}, 1)]


def test_a_record_that_lost_its_lease_counts_when_it_is_abandoned(recorded):
    report(events.AttemptAbandoned("w", "1", "not_found", "shop", kind="record"))
    assert recorded.values("jobchains.lease.lost") == [({TYPE: "shop", "jobchains.reason": "not_found"}, 1)]


def test_a_chain_that_is_cancelled_without_a_worker_counts(recorded, processors):
    @processors.register("ship")
    def ship(job): ...

    chains.cancel(ship.enqueue())
    assert recorded.values("jobchains.chain.duration") == [
        ({"jobchains.chain.type": "ship", "jobchains.chain.status": "cancelled"}, 1)
    ]


# Gauges


def test_gauges_about_queues_come_from_workers_and_from_processes_that_register_them(recorded, processors):
    @processors.register("ship", queue="parcels")
    def ship(job): ...

    ship.enqueue()
    ship.enqueue(delay=60)
    assert recorded.values("jobchains.queue.jobs") == []
    gauges = register_gauges(recorded.meters)
    try:
        figures = until(lambda: recorded.values("jobchains.queue.jobs"))
        found = {attributes["jobchains.job.status"]: value for attributes, value in figures}
        [(attributes, age)] = until(lambda: recorded.values("jobchains.queue.oldest_due.age"))
    finally:
        gauges.close()
    assert found == {"due": 1, "scheduled": 1, "blocked": 0, "running": 0}
    assert attributes == {QUEUE: "parcels"}
    assert age > 0
    assert recorded.values("jobchains.queue.jobs") == []


def test_the_most_slots_in_use_since_the_last_collection_are_reported(recorded, processors, start_worker):
    @processors.register("ship")
    def ship(job): ...

    @processors.register("sail")
    async def sail(job): ...

    start_worker()
    chains.wait(ship.enqueue(), 60)
    chains.wait(sail.enqueue(), 60)
    kinds = [{"jobchains.slot.kind": kind} for kind in ("thread", "async")]
    assert recorded.values("jobchains.worker.slots.peak") == [(kind, 1) for kind in kinds]
    until(lambda: recorded.values("jobchains.worker.slots.peak") == [(kind, 0) for kind in kinds])


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

    def measure(using):
        reads.append(1)
        return [MEASUREMENT]

    monkeypatch.setattr(probes, "measure", measure)
    figures = probes.CachedMeasurements(wait_seconds=30)
    assert figures.get() == figures.get() == [MEASUREMENT]
    assert len(reads) == 1
    monkeypatch.setattr(probes, "CACHE_SECONDS", 0.0)
    until(lambda: figures.get() and len(reads) > 1)  # repeated, because the first thread may not have ended yet


def test_a_database_that_does_not_answer_delays_no_reader(monkeypatch):
    hangs, ends = threading.Event(), threading.Event()

    def measure(using):
        hangs.set()
        ends.wait(60)
        return [MEASUREMENT]

    monkeypatch.setattr(probes, "measure", measure)
    figures = probes.CachedMeasurements(wait_seconds=0)
    assert figures.get() == []
    assert hangs.wait(10)
    assert figures.get() == []
    ends.set()
    until(figures.get)


def test_stranded_jobs_stay_visible_although_the_sweep_that_found_them_unblocked_them(
    recorded, processors, start_worker
):
    @processors.register("ship")
    def ship(job): ...

    start_worker()
    report(BlockedJobsSwept("w", 2, ()))
    report(BlockedJobsSwept("w", 0, ()))
    assert recorded.values("jobchains.blocked.stranded") == [({}, 2)]


# Shares of durations


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.5
        monkeypatch.setattr(metrics.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


LIMIT = metrics.MAX_RECORDS_PER_SECOND


def tally():
    return metrics.Tally(lambda counts: None)


def test_of_many_durations_an_even_share_is_recorded_from_the_first_second_on(clock):
    ended = tally()
    assert all(ended.add(("ship", "completed")) for _ in range(LIMIT))
    clock.now += 2
    assert sum(ended.add(("ship", "completed")) for _ in range(100 * LIMIT)) < 10 * LIMIT
    clock.now += 1
    taken = [ended.add(("ship", "completed")) for _ in range(100 * LIMIT)]
    assert LIMIT / 2 <= sum(taken) <= LIMIT
    assert sum(taken[: 50 * LIMIT]) == pytest.approx(sum(taken) / 2, abs=1)


def test_rare_values_do_not_vanish_among_frequent_ones(clock):
    ended = tally()
    for _ in range(5):
        clock.now += 1
        taken = {(name, number): ended.add((name, "completed")) for number in range(5000) for name in ("a", "b")}
        assert ended.add(("a", "failed"))
        assert ended.add(("rare", "completed"))
    assert 4 <= sum(taken["a", number] for number in range(5000)) <= LIMIT / 4 + 1


def test_the_first_duration_in_a_second_is_recorded_however_many_there_were_before(clock):
    ended = tally()
    for _ in range(100 * LIMIT):
        ended.add(("ship", "completed"))
    clock.now += 1
    assert ended.add(("ship", "completed"))


def test_the_durations_of_a_second_are_limited_for_all_values_together(clock):
    ended, kinds = tally(), [(f"type-{number}",) for number in range(3 * LIMIT)]
    for _ in range(3):
        clock.now += 1
        taken = [ended.add(kind) for _ in range(100) for kind in kinds]
    assert sum(taken) == len(kinds)  # one of each


def test_a_collection_counts_each_event_once(recorded, clock):
    name = "messaging.client.sent.messages"
    for second in range(3):
        clock.now = 100.0 + second
        for _ in range(2):
            report(events.JobCreated("", A, A, "ship", "mail", 0, False))
            [(_, count)] = recorded.values(name)
        assert count == 2 * (second + 1)


def test_types_and_outcomes_that_are_rare_are_in_the_histograms(recorded, clock):
    for name, ending, attempts in (("ship", "completed", 500), ("ship", "failed", 1), ("pay", "completed", 1)):
        for _ in range(attempts):
            report(AttemptEnded("w", A, A, name, 1, ending, 1.0, "", None, None, "q"))
            report(ChainEnded("w", A, name, ending, 1.0))
            report(RecordHookEnded("w", name, "pre_handle", 1.0, "" if ending == "completed" else "ValueError"))
    rare = [("pay", "completed"), ("ship", "failed")]
    ended = {(found[TYPE], found[OUTCOME]): count for found, count in recorded.values("messaging.process.duration")}
    assert [ended[key] for key in rare] == [1, 1]
    assert ended["ship", "completed"] < 500
    waits = {found[TYPE]: count for found, count in recorded.values("jobchains.job.wait.duration")}
    assert waits["pay"] == 1
    chain_type, status = "jobchains.chain.type", "jobchains.chain.status"
    durations = {(found[chain_type], found[status]): n for found, n in recorded.values("jobchains.chain.duration")}
    assert [durations[key] for key in rare] == [1, 1]
    assert durations["ship", "completed"] < 500
    counts = {(found[chain_type], found[status]): n for found, n in recorded.values("jobchains.chain.ended")}
    assert counts["ship", "completed"] == 500
    hooks = {(found[TYPE], found.get(ERROR)): n for found, n in recorded.values("jobchains.record.hook.duration")}
    assert (hooks["pay", None], hooks["ship", "ValueError"]) == (1, 1)
    assert hooks["ship", None] < 500
