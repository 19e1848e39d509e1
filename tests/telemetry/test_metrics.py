"""The metrics: their names, units and attributes, which dashboards and alerts rely on, and what they count."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.processors import Processors, RunningJob
from django_jobchains.records import RecordProcessor, RecordRun
from django_jobchains.telemetry import probes, report
from django_jobchains.telemetry.events import AttemptEnded, BlockedJobsSwept, JobReaped
from django_jobchains.telemetry.otel import instruments, register_gauges
from tests.records.models import Upload
from tests.support.attempts import committed
from tests.support.tracing import Recorded
from tests.support.waiting import until
from tests.support.workers import StartWorker

pytestmark = committed

TYPE, QUEUE, OUTCOME, ERROR = (
    "jobchains.job.type",
    "messaging.destination.name",
    "jobchains.job.outcome",
    "error.type",
)
#: The unit, the kind, and the attributes of each metric.
EXPECTED: dict[str, tuple[str, str, set[str]]] = {
    "messaging.client.sent.messages": ("{message}", "Sum", {TYPE, QUEUE}),
    "messaging.client.consumed.messages": ("{message}", "Sum", {TYPE, QUEUE}),
    "messaging.process.duration": ("s", "Histogram", {TYPE, QUEUE, OUTCOME, ERROR}),
    "messaging.client.operation.duration": ("s", "Histogram", {"messaging.operation.name", ERROR}),
    "jobchains.job.wait.duration": ("s", "Histogram", {TYPE, QUEUE}),
    "jobchains.record.hook.duration": ("s", "Histogram", {TYPE, "jobchains.record.hook", ERROR}),
    "jobchains.chain.duration": ("s", "Histogram", {"jobchains.chain.type", "jobchains.chain.status"}),
    "jobchains.attempt.ended": ("{attempt}", "Sum", {TYPE, OUTCOME}),
    "jobchains.job.reaped": ("{job}", "Sum", {TYPE, OUTCOME}),
    "jobchains.lease.lost": ("{lease}", "Sum", {TYPE, "jobchains.reason"}),
    "jobchains.slot.stuck": ("{slot}", "Sum", {TYPE, "jobchains.reason"}),
    "jobchains.worker.slots": ("{slot}", "Sum", {"jobchains.slot.state", "jobchains.slot.kind"}),
    "jobchains.worker.slots.peak": ("{slot}", "Gauge", {"jobchains.slot.kind"}),
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


@pytest.fixture
def everything(
    _of_project: None, recorded: Recorded, processors: Processors, start_worker: StartWorker, settings: Any
) -> dict[str, Any]:
    """Return the metrics of a worker after everything that is counted has happened."""
    settings.JOBCHAINS = {"STUCK_SECONDS": 0.05, "TIMEOUT_SECONDS": 0.1}
    release = threading.Event()

    @processors.register("ship")
    def ship(job: RunningJob[Any]) -> Any:
        if job.input == "fail":
            raise ValueError("no")
        if job.input == "lose":
            chains.complete(job.chain_id)
        if job.input == "hang":
            release.wait(60)
        return job.continue_with("ship", "end") if job.input == "continue" else None

    @processors.records(Upload)
    class Convert(RecordProcessor[Upload]):
        def pre_handle(self, record: Upload) -> None: ...

        def handle(self, record: Upload, run: RecordRun) -> None: ...

    Upload.objects.create()
    for what in ("end", "continue", "lose", "hang"):
        ship.enqueue(what)
    ship.enqueue("fail", max_attempts=1)
    ship.enqueue("hang", max_attempts=1)
    with open_transaction():
        worker = start_worker(slots=4)
        report(JobReaped(worker.id, *[worker_id()] * 2, "ship", 1, "pending", 1))
        try:
            until(lambda: recorded.values("jobchains.slot.stuck"))
            until(lambda: {"completed", "continued", "failed", "abandoned"} <= outcomes(recorded))
            return until(lambda: (found := recorded.metrics()).keys() >= expected_names() and found)
        finally:
            release.set()


def expected_names() -> set[str]:
    return EXPECTED.keys() - (ONLY_ON_SERVERS if connection.vendor == "sqlite" else set())


@contextmanager
def open_transaction() -> Iterator[None]:
    """Hold a transaction open, whose age is a metric. On SQLite, it would delay the worker."""
    if connection.vendor == "sqlite":
        yield
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        yield


def worker_id() -> Any:
    return "00000000-0000-0000-0000-000000000000"


def outcomes(recorded: Recorded) -> set[str]:
    return {attributes[OUTCOME] for attributes, _ in recorded.values("jobchains.attempt.ended")}


def test_names_units_kinds_and_attributes(everything: dict[str, Any]) -> None:
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


def test_no_attribute_holds_an_id(everything: dict[str, Any]) -> None:
    values = {
        str(value)
        for metric in everything.values()
        for point in metric.data.data_points
        for value in dict(point.attributes).values()
    }
    assert not [value for value in values if any(part.isdigit() and len(part) > 3 for part in value.split("-"))]
    assert not [value for value in values if ":" in value]


def test_the_values_of_an_attribute_are_limited(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruments, "MAX_VALUES", 3)
    for number in range(10):
        error = type(f"Error{number}", (Exception,), {})("no")
        report(AttemptEnded("w", *[worker_id()] * 2, f"type-{number}", 1, "failed", 1.0, "", None, error, f"q{number}"))
    for name in ("messaging.process.duration", "messaging.client.consumed.messages", "jobchains.attempt.ended"):
        for key in (TYPE, QUEUE, ERROR):
            found = {attributes[key] for attributes, _ in recorded.values(name) if key in attributes}
            assert len(found) in (0, 4), (name, key, found)
            assert not found or "_OTHER" in found


def test_what_is_counted(recorded: Recorded, processors: Processors, start_worker: StartWorker) -> None:
    @processors.register("pay")
    def pay(job: RunningJob[Any]) -> Any:
        if job.attempt == 1:
            raise ValueError("no")
        return job.continue_with("ship")

    @processors.register("ship")
    def ship(job: RunningJob[Any]) -> None: ...

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


def test_a_chain_that_is_cancelled_without_a_worker_counts(recorded: Recorded, processors: Processors) -> None:
    @processors.register("ship")
    def ship(job: RunningJob[Any]) -> None: ...

    chains.cancel(ship.enqueue())
    assert recorded.values("jobchains.chain.duration") == [
        ({"jobchains.chain.type": "ship", "jobchains.chain.status": "cancelled"}, 1)
    ]


# Gauges


def test_gauges_about_queues_come_from_workers_and_from_processes_that_register_them(
    recorded: Recorded, processors: Processors
) -> None:
    @processors.register("ship", queue="parcels")
    def ship(job: RunningJob[Any]) -> None: ...

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


def test_the_most_slots_in_use_since_the_last_collection_are_reported(
    recorded: Recorded, processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("ship")
    def ship(job: RunningJob[Any]) -> None: ...

    @processors.register("sail")
    async def sail(job: RunningJob[Any]) -> None: ...

    start_worker()
    chains.wait(ship.enqueue(), 60)
    chains.wait(sail.enqueue(), 60)
    kinds = [{"jobchains.slot.kind": kind} for kind in ("thread", "async")]
    assert recorded.values("jobchains.worker.slots.peak") == [(kind, 1) for kind in kinds]
    until(lambda: recorded.values("jobchains.worker.slots.peak") == [(kind, 0) for kind in kinds])


def test_the_figures_are_read_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def read(using: str | None) -> probes.DatabaseFigures:
        reads.append(1)
        return probes.DatabaseFigures((), None)

    monkeypatch.setattr(probes, "read_figures", read)
    figures = probes.CachedFigures(wait_seconds=30)
    assert figures.get() == figures.get() == probes.DatabaseFigures((), None)
    assert len(reads) == 1
    monkeypatch.setattr(probes, "CACHE_SECONDS", 0.0)
    until(lambda: figures.get() and len(reads) > 1)  # repeated, because the first thread may not have ended yet


def test_a_database_that_does_not_answer_delays_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, ends = threading.Event(), threading.Event()

    def read(using: str | None) -> probes.DatabaseFigures:
        hangs.set()
        ends.wait(60)
        return probes.DatabaseFigures((), None)

    monkeypatch.setattr(probes, "read_figures", read)
    figures = probes.CachedFigures(wait_seconds=0)
    assert figures.get() is None
    assert hangs.wait(10)
    assert figures.get() is None
    ends.set()
    until(figures.get)


def test_stranded_jobs_stay_visible_although_the_sweep_that_found_them_unblocked_them(
    recorded: Recorded, processors: Processors, start_worker: StartWorker
) -> None:
    @processors.register("ship")
    def ship(job: RunningJob[Any]) -> None: ...

    start_worker()
    report(BlockedJobsSwept("w", 2, ()))
    report(BlockedJobsSwept("w", 0, ()))
    assert recorded.values("jobchains.blocked.stranded") == [({}, 2)]


def test_of_many_durations_an_even_share_is_recorded_from_the_first_second_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.5]
    monkeypatch.setattr(instruments.time, "monotonic", lambda: now[0])
    share, limit = instruments.Share(), instruments.MAX_RECORDS_PER_SECOND
    assert all(share.takes() for _ in range(limit - 1))
    now[0] += 2
    assert sum(share.takes() for _ in range(100 * limit)) < 10 * limit
    now[0] += 1
    taken = [share.takes() for _ in range(100 * limit)]
    assert limit / 2 <= sum(taken) <= limit
    assert sum(taken[: 50 * limit]) == pytest.approx(sum(taken) / 2, abs=1)
