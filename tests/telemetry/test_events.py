"""Sinks receive an event for everything that happens, but only after the commit."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_jobchains import chains
from django_jobchains.records import RecordProcessor
from django_jobchains.telemetry import DetailEvent, Event, add_sink, observes, remove_sink
from django_jobchains.telemetry import events as all_events
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
from tests.records.models import Upload
from tests.support.attempts import committed
from tests.support.waiting import until

pytestmark = committed


class Facts(list[Event]):
    def of(self, *kinds):
        return [event for event in self if isinstance(event, kinds)]


@pytest.fixture
def facts():
    facts = Facts()
    add_sink(facts.append, DetailEvent)
    yield facts
    remove_sink(facts.append)


def test_without_a_sink_for_details_none_are_created(processors, make_worker):
    details = [kind for kind in vars(all_events).values() if isinstance(kind, type) and issubclass(kind, DetailEvent)]
    assert not any(map(observes, details))
    seen = []
    add_sink(seen.append)
    try:
        processors.register("ship")(lambda job: None).enqueue()
        make_worker().run_until_idle()
    finally:
        remove_sink(seen.append)
    assert [event for event in seen if isinstance(event, AttemptEnded)]
    assert not [event for event in seen if isinstance(event, DetailEvent)]


def test_a_sink_receives_only_the_details_that_it_asked_for(processors):
    seen = []
    add_sink(seen.append, ChainCreated)
    try:
        processors.register("ship")(lambda job: None).enqueue()
    finally:
        remove_sink(seen.append)
    assert [type(event) for event in seen] == [ChainCreated]
    with pytest.raises(TypeError, match="subclasses of DetailEvent"):
        add_sink(seen.append, AttemptEnded)


def test_a_chain_from_its_creation_to_its_end(facts, processors, make_worker):
    @processors.register("pay")
    def pay(job):
        return job.continue_with("ship")

    @processors.register("ship", queue="parcels")
    def ship(job): ...

    chain = pay.enqueue()
    worker = make_worker()
    worker.start()
    until(lambda: facts.of(ChainEnded) and {"claim", "finish", "heartbeat"} <= operations(facts))
    worker.stop()
    last = chain.refresh().current_job
    assert facts.of(ChainCreated) == [ChainCreated("", chain.id, "pay")]
    assert facts.of(JobCreated) == [
        JobCreated("", chain.id, chain.id, "pay", "default", 0, False),
        JobCreated("", last.id, chain.id, "ship", "parcels", 1, False),
    ]
    assert [(event.type_name, event.attempt) for event in facts.of(AttemptStarted)] == [("pay", 1), ("ship", 1)]
    [ended] = facts.of(ChainEnded)
    assert isinstance(ended, ChainEnded)
    assert (ended.chain_id, ended.type_name, ended.status) == (chain.id, "pay", "completed")
    assert ended.seconds >= 0


def operations(facts):
    return {event.operation for event in facts.of(OperationEnded)}


def test_blockers(facts, processors, make_worker):
    @processors.register("ship")
    def ship(job): ...

    blocker = ship.enqueue()
    waiting = ship.enqueue(blockers=[blocker])
    assert [event.is_blocked for event in facts.of(JobCreated)] == [False, True]
    make_worker().run_until_idle()
    assert facts.of(JobUnblocked) == [JobUnblocked("", waiting.id, "ship")]
    after = ship.enqueue(blockers=[blocker])
    assert facts.of(JobCreated)[-1] == JobCreated("", after.id, after.id, "ship", "default", 0, False)


def test_interventions(facts, processors):
    @processors.register("ship")
    def ship(job): ...

    chain = ship.enqueue(delay=3600)
    chains.reschedule(chain, delay=60)
    chains.run_now(chain)
    chains.cancel(chain)
    chains.retry(chain)
    chains.complete(chain)
    chains.delete(chain)
    kinds = (JobRescheduled, JobTriggered, ChainCancelRequested, JobRetried, CompletedWithoutWorker)
    found = [(type(event), getattr(event, "status", None)) for event in facts.of(*kinds, ChainEnded, ChainDeleted)]
    assert found == [
        (JobRescheduled, None),
        (JobTriggered, None),
        (ChainEnded, "cancelled"),
        (ChainCancelRequested, None),
        (JobRetried, None),
        (CompletedWithoutWorker, None),
        (ChainEnded, "completed"),
        (ChainDeleted, None),
    ]


def test_what_was_rolled_back_is_not_reported(facts, processors):
    @processors.register("ship")
    def ship(job): ...

    chain = ship.enqueue(delay=3600)
    facts.clear()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ship.enqueue()
        chains.run_now(chain)
        chains.cancel(chain)
        raise ZeroDivisionError
    assert facts == []


def test_the_life_of_a_worker(facts, processors, start_worker):
    processors.register("ship")(lambda job: None)
    worker = start_worker()
    worker.stop()
    kinds = (WorkerStarted, WorkerStopping, WorkerStopped)
    assert [type(event) for event in facts.of(*kinds)] == list(kinds)
    assert {event.worker for event in facts.of(*kinds)} == {worker.id}
    [started] = facts.of(WorkerStarted)
    assert isinstance(started, WorkerStarted)
    assert (started.slots, started.type_names, started.queues) == (2, ("ship",), None)


def test_records_from_their_start_to_their_end(facts, processors, make_worker):
    @processors.records(Upload, queue="uploads")
    def upload(record, run): ...

    done, flagged = Upload.objects.create(), Upload.objects.create(cancel=True)
    make_worker().run_until_idle()
    [ended] = facts.of(AttemptEnded)
    assert isinstance(ended, AttemptEnded)
    assert (ended.job_id, ended.attempt, ended.ending, ended.queue) == (str(done.pk), 1, "completed", "uploads")
    [cancelled] = facts.of(RecordCancelled)
    assert isinstance(cancelled, RecordCancelled)
    assert cancelled.record == str(flagged.pk)


def test_a_record_that_is_cancelled_before_it_is_due(facts, processors, start_worker):
    processors.records(Upload)(lambda record, run: None)
    flagged = Upload.objects.create(cancel=True, process_after=timezone.now() + timedelta(hours=1))
    worker = start_worker()
    until(lambda: facts.of(RecordCancelled))
    [cancelled] = facts.of(RecordCancelled)
    assert isinstance(cancelled, RecordCancelled)
    assert (cancelled.worker, cancelled.record, cancelled.type_name) == (worker.id, str(flagged.pk), "records.upload")


def test_the_hooks_of_a_record(facts, processors, start_worker):
    @processors.records(Upload)
    class Convert(RecordProcessor[Upload]):
        def handle(self, record, run): ...

        def post_handle(self, record):
            raise ValueError("no")

    Upload.objects.create()
    worker = start_worker()
    until(lambda: facts.of(RecordHookEnded))
    [ended] = facts.of(RecordHookEnded)
    assert isinstance(ended, RecordHookEnded)
    found = (ended.worker, ended.type_name, ended.hook, ended.error_type)
    assert found == (worker.id, "records.upload", "post_handle", "ValueError")
    assert ended.seconds > 0


@pytest.mark.postgresql
def test_a_listener_that_loses_its_connection(facts, processors, start_worker):
    processors.register("ship")(lambda job: None)
    start_worker()
    until(lambda: facts.of(NotifierConnected))
    with connection.cursor() as cursor:
        # The listener is the only session whose last statement is LISTEN or one of its checks.
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%%' AND pid <> pg_backend_pid()"
        )
    until(lambda: facts.of(NotifierFailed) and len(facts.of(NotifierConnected)) > 1)


def test_leases_and_listeners(facts, processors, start_worker, store):
    @processors.register("ship", lease=3)
    def ship(job):
        job.signal.wait(20)

    ship.enqueue()
    start_worker()
    until(lambda: facts.of(LeasesRenewed))
    assert facts.of(LeasesRenewed)[0].count == 1
    if store.connection.vendor == "postgresql":
        until(lambda: facts.of(NotifierConnected))
