"""Attempts in child processes: they share a trace with their worker, which records each event and metric once."""

import signal

import pytest

from django_jobchains import chains
from django_jobchains.children.child_process import close_preload
from django_jobchains.exceptions import ChildCrashed
from django_jobchains.isolation import Isolation
from django_jobchains.models import Job
from django_jobchains.telemetry import probes
from django_jobchains.telemetry.events import AttemptEnded, AttemptStarted, ChildDied, ChildKilled, JobCreated
from tests.isolation.app.traced_jobs import URL, set_up_tracing
from tests.records.models import Export
from tests.support.attempts import committed
from tests.support.tracing import id_of, parent_of, trace_of
from tests.support.waiting import until
from tests.telemetry.otlp_receiver import Receiver

pytestmark = [committed, pytest.mark.slow]

TYPE, OUTCOME = "jobchains.job.type", "jobchains.job.outcome"
TYPES = ("first", "next", "last", "other")
SET_UP = f"{set_up_tracing.__module__}:{set_up_tracing.__qualname__}"


@pytest.fixture
def receiver(monkeypatch, registry):
    """Receives the spans of child processes, which run the types of ``traced_jobs``."""
    receiver = Receiver()
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.isolation.worker_settings")
    monkeypatch.setenv(URL, f"{receiver.url}/v1/traces")
    close_preload()
    yield receiver
    close_preload()
    receiver.close()


def register(processors, isolation):
    """Register the types in this process too, and return them. Their handlers run in child processes only."""
    types = {
        name: processors.register(f"isolation.traced_{name}", isolation=isolation, max_attempts=1)(lambda job: None)
        for name in TYPES
    }
    types["batch"] = processors.register("isolation.traced_batch", isolation=isolation, batch_limit=5)(lambda job: None)
    return types


@pytest.mark.parametrize("level", ["process", "transient"])
def test_a_chain_is_one_trace(recorded, processors, start_worker, receiver, level):
    chain = register(processors, Isolation(level, setup=SET_UP))["first"].enqueue()
    start_worker()
    until(lambda: chain.refresh().status == "failed" and not Job.objects.with_status("pending", "running").exists())
    until_ended(recorded, *TYPES)
    first, second, last = (recorded.one(f"process isolation.traced_{name}") for name in ("first", "next", "last"))
    assert outcomes_of(first, second, last) == ["continued", "continued", "failed"]
    of_children = {span.name: span for span in receiver.spans}
    # Spans of the child process, inside the attempt of the worker.
    assert parent_in_child(of_children["prepare"]) == id_of(first)
    assert parent_in_child(of_children["inside"]) == id_in_child(of_children["prepare"])
    assert parent_in_child(of_children["complete"]) == id_of(first)
    # The child process created these jobs.
    other = recorded.one("process isolation.traced_other")
    assert parent_of(other) == id_in_child(of_children["send isolation.traced_other"])
    assert parent_in_child(of_children["inside other"]) == id_of(other)
    assert parent_of(second) == id_in_child(of_children["send isolation.traced_next"])
    assert parent_in_child(of_children["send isolation.traced_next"]) == id_in_child(of_children["complete"])
    # The worker created this one.
    sent = recorded.one("send isolation.traced_last")
    assert "send isolation.traced_last" not in of_children
    assert (parent_of(sent), parent_of(last)) == (id_of(second), id_of(sent))
    traces = {trace_of(span) for span in recorded.spans} | {int.from_bytes(span.trace_id) for span in receiver.spans}
    assert len(traces) == 1
    assert last.attributes["error.type"] == "tests.isolation.app.traced_jobs.Broken"
    assert "hunter2" not in last.to_json()


def test_metrics_and_events_count_each_attempt_and_job_once(recorded, facts, processors, start_worker, receiver):
    register(processors, Isolation("process"))["first"].enqueue()
    start_worker()
    until(lambda: len(facts.of(AttemptEnded)) == 4)
    until(lambda: len(recorded.values("jobchains.chain.duration")) == 2)
    names = sorted(f"isolation.traced_{name}" for name in TYPES)
    for kind in (AttemptStarted, JobCreated, AttemptEnded):
        assert sorted(event.type_name for event in facts.of(kind)) == names
    for metric in ("messaging.client.sent.messages", "messaging.process.duration", "jobchains.job.wait.duration"):
        counts = sorted((attributes[TYPE], count) for attributes, count in recorded.values(metric))
        assert counts == [(name, 1) for name in names], metric


def test_threads_that_replace_child_processes_count_each_attempt_and_job_once(
    recorded, facts, processors, start_worker, receiver
):
    isolation = Isolation("process", setup="tests.isolation.broken:refuse")
    second = processors.register("ends", isolation=isolation)(lambda job: None)

    @processors.register("begins", isolation=isolation)
    def begins(job):
        with job.complete():
            second.enqueue()

    begins.enqueue()
    start_worker()
    until(lambda: len(facts.of(AttemptEnded)) == 2 and len(recorded.values("messaging.process.duration")) == 2)
    for kind in (JobCreated, AttemptStarted, AttemptEnded):
        assert sorted(event.type_name for event in facts.of(kind)) == ["begins", "ends"]
    assert {count for _, count in recorded.values("messaging.process.duration")} == {1}
    complete, sent = recorded.one("complete"), recorded.one("send ends")
    assert parent_of(complete) == id_of(recorded.one("process begins"))
    assert parent_of(sent) == id_of(complete)
    assert parent_of(recorded.one("process ends")) == id_of(sent)


def test_a_child_process_without_an_sdk_passes_the_trace_on(recorded, processors, start_worker, receiver):
    chain = register(processors, Isolation("process"))["first"].enqueue()
    start_worker()
    until(lambda: chain.refresh().status == "failed")
    until_ended(recorded, *TYPES)
    first, second = recorded.one("process isolation.traced_first"), recorded.one("process isolation.traced_next")
    assert parent_of(second) == id_of(first)
    assert parent_of(recorded.one("process isolation.traced_other")) == id_of(first)
    assert receiver.spans == []


def test_an_attempt_at_a_record_continues_in_the_child_process(
    recorded, processors, start_worker, receiver, monkeypatch
):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.records.worker_settings")

    @processors.records(Export, isolation=Isolation("process", setup=SET_UP), max_attempts=1)
    def export(record, run): ...

    Export.objects.create(name="commit")
    Export.objects.create(name="fail")
    start_worker()
    until(lambda: len(recorded.spans) == 2)
    attempts = {span.attributes[OUTCOME]: span for span in recorded.spans}
    assert attempts.keys() == {"completed", "failed"}
    [complete] = [span for span in receiver.spans if span.name == "complete"]
    assert parent_in_child(complete) == id_of(attempts["completed"])
    error = attempts["failed"].attributes["error.type"]
    assert error == "django_jobchains.records.errors.NonRetryable"
    until(lambda: [count for _, count in recorded.values("messaging.process.duration")] == [1, 1])


def test_deaths_of_child_processes_are_events(events, recorded, processors, start_worker, receiver):
    isolation = Isolation("process", grace_seconds=0.1)
    dies = processors.register("isolation.dies", isolation=isolation, max_attempts=1)(lambda job: None)
    hangs = processors.register("isolation.hangs_for_ever", isolation=isolation, timeout=1, max_attempts=1)
    crashed, killed = dies.enqueue("SIGKILL"), hangs(lambda job: None).enqueue()
    start_worker()
    until(lambda: {event.job_id for event in events.of(AttemptEnded)} == {crashed.id, killed.id})
    until(lambda: recorded.all("process isolation.dies"))
    assert {(event.job_id, event.exitcode) for event in events.of(ChildDied)} == {(crashed.id, -signal.SIGKILL)}
    assert [(event.job_id, event.reason) for event in events.of(ChildKilled)] == [(killed.id, "timed_out")]
    [crash, *_] = [event.exception for event in events.of(AttemptEnded) if event.job_id == crashed.id]
    assert crash.__traceback__ is None  # Its calls would be those of the worker.
    # A crash does not count as an attempt, so the job is retried, and each attempt has a span.
    assert outcomes_of(recorded.all("process isolation.dies")[0]) == ["retried"]


def test_the_error_of_a_record_whose_child_process_died_has_no_calls_of_the_worker(
    events, processors, start_worker, monkeypatch
):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.records.worker_settings")
    processors.records(Export, isolation=Isolation("process"), max_attempts=1)(lambda record, run: None)
    Export.objects.create(name="die")
    start_worker()
    until(lambda: events.of(AttemptEnded))
    [ended] = events.of(AttemptEnded)
    assert (type(ended.exception), ended.exception.__traceback__) == (ChildCrashed, None)


def test_metrics_show_the_pools_of_child_processes_and_their_slots(
    recorded, processors, start_worker, receiver, monkeypatch
):
    monkeypatch.setattr(probes, "PEAK_SECONDS", 0)
    isolation = Isolation("process", key="films", max_workers=1, max_jobs_per_worker=1, grace_seconds=0.1)
    hangs = processors.register("isolation.hangs_for_ever", isolation=isolation)(lambda job: None).enqueue()
    counted = processors.register("isolation.count_down", isolation=isolation)(lambda job: None)
    start_worker(slots=2)
    pool = {"jobchains.pool.level": "process", "jobchains.pool.key": "films"}
    busy = {**pool, "jobchains.pool.state": "busy"}
    until(lambda: (busy, 1) in recorded.values("jobchains.pool.children"))
    kind, state = "jobchains.slot.kind", "jobchains.slot.state"
    slots = {(found[kind], found[state]): count for found, count in recorded.values("jobchains.worker.slots")}
    assert slots == {("thread", "idle"): 1, ("thread", "busy"): 0, ("thread", "stuck"): 0, ("process", "busy"): 1}
    assert ({kind: "process"}, 1) in recorded.values("jobchains.worker.slots.peak")
    assert recorded.values("jobchains.pool.waiting") == [(pool, 0)]
    [(_, memory)] = recorded.values("jobchains.pool.memory")
    assert memory > 1024**2
    chains.cancel(hangs)
    assert chains.wait(counted.enqueue(0), 60) == "zero"
    until(lambda: recorded.values("jobchains.child.recycled") == [(pool, 1)])
    assert [count for _, count in recorded.values("jobchains.child.killed")] == [1]
    until(lambda: ({kind: "process"}, 0) in recorded.values("jobchains.worker.slots.peak"))
    chains.wait(counted.enqueue(0), 60)
    assert ({kind: "process"}, 1) in recorded.values("jobchains.worker.slots.peak")


def test_a_batch_in_a_child_process(recorded, processors, start_worker, receiver):
    batch_type = register(processors, Isolation("process", setup=SET_UP))["batch"]
    chains.enqueue_many([batch_type.item() for _ in range(2)])
    start_worker()
    until(lambda: len(recorded.all("process isolation.traced_batch")) == 3)
    [batch] = [span for span in recorded.all("process isolation.traced_batch") if span.parent is None]
    [complete] = [span for span in receiver.spans if span.name == "complete"]
    assert parent_in_child(complete) == id_of(batch)


def until_ended(recorded, *names):
    """Wait for the span of an attempt of each type. It ends a moment after the job."""
    until(lambda: all(len(recorded.all(f"process isolation.traced_{name}")) == 1 for name in names))


def outcomes_of(*spans):
    return [span.attributes[OUTCOME] for span in spans]


def id_in_child(span):
    return int.from_bytes(span.span_id)


def parent_in_child(span):
    return int.from_bytes(span.parent_span_id)
