"""Sinks receive an event for everything that happens, after the commit. Each event has a level, line and counter."""

import logging
from datetime import timedelta
from uuid import UUID

import pytest
from django.core.management.color import no_style
from django.db import connection, transaction
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.records import RecordProcessor
from django_jobchains.telemetry import DetailEvent, Event, add_sink, events, names, observes, remove_sink, report
from django_jobchains.telemetry.events import (
    AttemptEnded,
    AttemptStarted,
    ChainCancelRequested,
    ChainCreated,
    ChainDeleted,
    ChainEnded,
    CompletedWithoutWorker,
    JobCreated,
    JobRescheduled,
    JobRetried,
    JobTriggered,
    JobUnblocked,
    LeasesRenewed,
    NotifierConnected,
    NotifierFailed,
    OperationEnded,
    RecordCancelled,
    RecordHookEnded,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from django_jobchains.telemetry.terminal import TerminalSink
from tests.records.models import Upload
from tests.support.attempts import committed
from tests.support.waiting import until

pytestmark = committed

#: The id of a job.
A = UUID(int=0)
DEAD = "taken from a dead worker"
STUCK = "is stuck: timed out, but it does not stop; 1 slots occupied"
#: Each event with a counter: its level in the log, its line in the terminal, the counter, and the values of the
#: counter's attributes. An event that is not logged is a ``DetailEvent``.
COUNTED = [
    (events.JobCreated("w", A, A, "ship", "mail", 0, False), "", "", "messaging.client.sent.messages", "ship mail"),
    (events.ChainEnded("w", A, "ship", "failed", 1.0), "", "", "jobchains.chain.ended", "ship failed"),
    (events.JobReaped("w", A, A, "ship", 1, "pending", 1), "WARNING",
     f"↺ ship {A} {DEAD}: pending, crash 1", "jobchains.job.reaped", "ship retried"),
    (events.JobReaped("w", A, A, "ship", 1, "failed", 2), "ERROR",
     f"↺ ship {A} {DEAD}: failed, crash 2", "jobchains.job.reaped", "ship failed"),
    (events.RecordReset("w", "1", "shop", "queued", 1), "WARNING",
     f"↺ shop 1 {DEAD}: queued, reset 1", "jobchains.job.reaped", "shop requeued"),
    (events.RecordReset("w", "1", "shop", "failed", 1), "ERROR",
     f"↺ shop 1 {DEAD}: failed, reset 1", "jobchains.job.reaped", "shop failed"),
    (events.AttemptStuck("w", A, "ship", "timed_out", 1, ""), "ERROR",
     f"! ship {A} {STUCK}", "jobchains.slot.stuck", "ship timed_out"),
    (events.AttemptStuck("w", "1", "shop", "timed_out", 1, "", "record"), "ERROR",
     f"! shop 1 {STUCK}", "jobchains.slot.stuck", "shop timed_out"),
    (events.BlockedJobFailed("w", A, A, "ship", "no"), "ERROR",
     f"✗ ship {A} failed without an attempt: no", "jobchains.blocked.failed", "ship"),
    (events.RecordCancelled("w", "1", "shop"), "INFO",
     "⊘ shop 1 cancelled before it started", "jobchains.record.cancelled", "shop"),
    (events.JobExpired("w", A, A, "ship"), "INFO",
     f"⊘ ship {A} expired before it started", "jobchains.job.expired", "ship"),
    (events.OutcomeDelayed("w", A, "ship", 9.04, "no"), "WARNING",
     f"! ship {A} has ended, not stored for 9.0 s: no", "jobchains.outcome.delayed", "ship"),
    (events.ScheduleFailed("w", "nightly", "no"), "ERROR",
     "! schedule nightly cannot fire, trying again: no", "jobchains.schedule.failed", "nightly"),
    (events.ChildDied("w", A, "ship", 7, -9, "killed"), "WARNING",
     f"! ship {A}, process 7: killed", "jobchains.child.crashed", "ship"),
    (events.ChildKilled("w", "1", "shop", 7, "timed_out"), "WARNING",
     "! shop 1, process 7 was killed: timed out", "jobchains.child.killed", "shop timed_out"),
    (events.ChildRecycled("w", "process", "images", 7), "", "", "jobchains.child.recycled", "process images"),
    (events.IsolationWeakened("w", "process", "thread", "no"), "WARNING",
     "! handlers run with isolation 'thread' instead of 'process': no", "jobchains.isolation.weakened",
     "process thread"),
    (events.IsolationFailed("w", "process", "no", 10.0), "WARNING",
     "! isolation 'process' failed, trying again in 10 s: no", "jobchains.isolation.failed", "process"),
    (events.ThreadFailed("w", "claim-loop", "no", 1, False), "ERROR",
     "! claim-loop failed (1 in a row), trying again: no", "jobchains.thread.failed", "claim-loop"),
    (events.ProcessEnded("w", 1, 7, 0, None), "INFO",
     "Process 1 (7) ended with code 0", "jobchains.process.ended", "exited"),
    (events.ProcessEnded("w", 1, 7, 1, None), "WARNING",
     "Process 1 (7) ended with code 1", "jobchains.process.ended", "failed"),
    (events.ProcessEnded("w", 1, 7, -9, 1.0), "WARNING",
     "Process 1 (7) was killed by signal 9; restarting in 1.0 s", "jobchains.process.ended", "killed"),
    (events.ProcessNotStarted("w", 1, "no", 1.0), "ERROR",
     "! process 1 cannot be started, retrying in 1.0 s: no", "jobchains.process.ended", "not_started"),
    (events.ProcessNotReplaced("w", 1, "no"), "ERROR",
     "! process 1 is not replaced, the old one continues: no", "jobchains.process.ended", "not_replaced"),
    (events.NotifierFailed("w", "Redis", "no", 1), "", "", "jobchains.notifier.failed", "Redis"),
    (events.CodecFailed("w", "decode", "InvalidToken"), "", "", "jobchains.codec.failed", "decode InvalidToken"),
]  # fmt: skip
#: Warnings that another event or a gauge counts, or after which the process ends.
NOT_COUNTED = {events.AttemptAbandoned, events.SupervisorGaveUp}
KINDS = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}


@pytest.mark.parametrize(("event", "level", "line", "name", "values"), COUNTED, ids=lambda value: type(value).__name__)
def test_an_event_has_a_level_a_line_in_the_terminal_and_a_counter(recorded, caplog, event, level, line, name, values):
    lines = []
    [metric] = [metric for metric in names.METRICS if metric.name == name]
    with caplog.at_level(logging.DEBUG, "django_jobchains"):
        report(event)
        report(event)
    TerminalSink(lines.append, no_style(), 1, "w")(event)
    assert [record.levelname for record in caplog.records] == ([level] * 2 if level else [])
    assert lines == ([line] if line else [])
    attributes = dict(zip(metric.attributes, values.split(), strict=True))
    assert recorded.values(name) == [({**names.CONSTANTS.get(metric, {}), **attributes}, 2)]


def test_every_counter_of_an_event_is_tested_and_every_event_that_needs_a_person_has_one():
    assert {type(event) for event, *_ in COUNTED} == {kind for kind in KINDS if kind.counter is not None}
    urgent = {kind for kind in KINDS if kind.level in (logging.WARNING, logging.ERROR)}
    assert {kind for kind in urgent if kind.counter is None} == NOT_COUNTED


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (AttemptEnded("w", A, A, "ship", 1, "abandoned", 1.0, "", None, abandoned_reason="cancelled"), "cancelled"),
        (events.AttemptAbandoned("w", "1", "not_found", "ship", kind="record"), "not_found"),
    ],
)
def test_an_attempt_that_lost_its_lease_counts_once_by_its_reason(recorded, event, reason):
    report(event)
    report(events.AttemptAbandoned("w", A, "cancelled"))
    [(attributes, count)] = recorded.values("jobchains.lease.lost")
    assert (set(attributes.values()), count) == ({"ship", reason}, 1)


@pytest.mark.parametrize(("seconds", "text"), [(0.0042, "4 ms"), (6.0, "6.0 s"), (3723, "1 h 2 min")])
def test_the_terminal_shows_durations_as_other_pages_do(seconds, text):
    line = AttemptEnded("w", A, A, "ship", 1, "completed", seconds, "", None).line()
    assert line == f"✓ ship {A}  {text}"


@pytest.fixture
def receive():
    """Add a sink that asks for the given details, and return what it receives."""
    sinks = []

    def add(*details):
        seen = []
        sinks.append(seen.append)
        add_sink(seen.append, *details)
        return seen

    yield add
    for sink in sinks:
        remove_sink(sink)


def test_a_sink_receives_only_the_details_that_it_asked_for(receive, ship, make_worker):
    assert not any(map(observes, [kind for kind in KINDS if issubclass(kind, DetailEvent)]))
    without = receive()
    ship.enqueue()
    make_worker().run_until_idle()
    assert AttemptEnded in set(map(type, without))
    assert not [event for event in without if isinstance(event, DetailEvent)]
    asked = receive(ChainCreated)
    ship.enqueue()
    assert [type(event) for event in asked] == [ChainCreated]
    with pytest.raises(TypeError, match="subclasses of DetailEvent"):
        receive(AttemptEnded)


def test_events_that_are_reported_together_reach_each_sink_although_it_fails_for_one(receive):
    seen = receive()
    events_of_all = [AttemptEnded("w", A, A, name, 1, "completed", 1.0, "", None) for name in ("a", "b", "c")]

    def fail(event):
        if event.type_name == "a":
            raise ValueError
        failing.append(event)

    failing = []
    add_sink(fail)
    try:
        report(*events_of_all)
        report()
    finally:
        remove_sink(fail)
    assert seen == events_of_all
    assert failing == events_of_all[1:]


def test_a_chain_from_its_creation_to_its_end(facts, processors, start_worker):
    pay = processors.register("pay")(lambda job: job.continue_with("ship"))
    processors.register("ship", queue="parcels")(lambda job: None)
    chain = pay.enqueue()
    worker = start_worker()
    operations = {"claim", "finish", "heartbeat"}
    until(lambda: facts.of(ChainEnded) and operations <= {event.operation for event in facts.of(OperationEnded)})
    worker.stop()
    last = chain.refresh().current_job
    assert facts.of(ChainCreated) == [ChainCreated("", chain.id, "pay")]
    assert facts.of(JobCreated) == [
        JobCreated("", chain.id, chain.id, "pay", "default", 0, False),
        JobCreated("", last.id, chain.id, "ship", "parcels", 1, False),
    ]
    assert [(event.type_name, event.attempt) for event in facts.of(AttemptStarted)] == [("pay", 1), ("ship", 1)]
    [ended] = facts.of(ChainEnded)
    assert (ended.chain_id, ended.type_name, ended.status) == (chain.id, "pay", "completed")
    assert ended.seconds >= 0
    kinds = (WorkerStarted, WorkerStopping, WorkerStopped)
    assert [(type(event), event.worker) for event in facts.of(*kinds)] == [(kind, worker.id) for kind in kinds]
    [started] = facts.of(WorkerStarted)
    assert (started.slots, started.type_names, started.queues) == (2, ("pay", "ship"), None)


def test_blockers(facts, ship, make_worker):
    blocker = ship.enqueue()
    waiting = ship.enqueue(blockers=[blocker])
    make_worker().run_until_idle()
    assert facts.of(JobUnblocked) == [JobUnblocked("", waiting.id, "ship")]
    ship.enqueue(blockers=[blocker])
    assert [event.is_blocked for event in facts.of(JobCreated)] == [False, True, False]


def test_interventions(facts, ship):
    chain = ship.enqueue(delay=3600)
    facts.clear()
    chains.reschedule(chain, delay=60)
    chains.run_now(chain)
    chains.cancel(chain)
    chains.retry(chain)
    chains.complete(chain)
    chains.delete(chain)
    facts[:] = [event for event in facts if not isinstance(event, OperationEnded)]
    assert [(type(event), getattr(event, "status", None)) for event in facts] == [
        (JobRescheduled, None),
        (JobTriggered, None),
        (ChainEnded, "cancelled"),
        (ChainCancelRequested, None),
        (JobRetried, None),
        (CompletedWithoutWorker, None),
        (ChainEnded, "completed"),
        (ChainDeleted, None),
    ]


def test_what_was_rolled_back_is_not_reported(facts, ship):
    chain = ship.enqueue(delay=3600)
    facts.clear()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ship.enqueue()
        chains.run_now(chain)
        chains.cancel(chain)
        raise ZeroDivisionError
    assert facts == []


def test_records_from_their_start_to_their_end(facts, processors, start_worker):
    @processors.records(Upload, queue="uploads")
    class Convert(RecordProcessor):
        def handle(self, record, run): ...

        def post_handle(self, record):
            raise ValueError("no")

    done, flagged = Upload.objects.create(), Upload.objects.create(cancel=True)
    later = Upload.objects.create(cancel=True, process_after=timezone.now() + timedelta(hours=1))
    worker = start_worker()
    until(lambda: facts.of(AttemptEnded) and facts.of(RecordHookEnded) and len(facts.of(RecordCancelled)) == 2)
    [ended], [hook] = facts.of(AttemptEnded), facts.of(RecordHookEnded)
    assert (ended.job_id, ended.attempt, ended.ending, ended.queue) == (str(done.pk), 1, "completed", "uploads")
    assert (hook.worker, hook.type_name, hook.hook) == (worker.id, "records.upload", "post_handle")
    assert (hook.error_type, hook.seconds > 0) == ("ValueError", True)
    cancelled = {(event.worker, event.record, event.type_name) for event in facts.of(RecordCancelled)}
    assert cancelled == {(worker.id, str(record.pk), "records.upload") for record in (flagged, later)}


@pytest.mark.postgresql
def test_a_listener_that_loses_its_connection(facts, ship, start_worker):
    start_worker()
    until(lambda: facts.of(NotifierConnected))
    with connection.cursor() as cursor:
        # The listener is the only session whose last statement is LISTEN or one of its checks.
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND (query LIKE '%LISTEN %' OR query = 'SELECT pg_listening_channels()')"
        )
        assert cursor.rowcount == 1
    until(lambda: facts.of(NotifierFailed) and len(facts.of(NotifierConnected)) > 1)


def test_leases(facts, processors, start_worker):
    @processors.register("ship", lease=3)
    def ship(job):
        job.signal.wait(20)

    ship.enqueue()
    start_worker()
    until(lambda: facts.of(LeasesRenewed))
    assert facts.of(LeasesRenewed)[0].count == 1
