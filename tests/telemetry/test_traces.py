"""A chain is one trace, from its enqueue to its last attempt."""

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from django_jobchains import chains, context
from django_jobchains.models import Job
from django_jobchains.processors import Deduplicate, RescheduleJob
from django_jobchains.telemetry.otel import JobchainsInstrumentor
from tests.support.attempts import committed
from tests.support.tracing import Recorded, id_of, parent_of, recording, trace_of

pytestmark = committed


def test_an_attempt_is_a_child_of_what_enqueued_it(recorded, processors, make_worker):
    @processors.register("ship", queue="parcels")
    def ship(job):
        with recorded.tracer.start_as_current_span("inside"):
            pass

    with recorded.tracer.start_as_current_span("view"):
        chain = ship.enqueue()
    make_worker().run_until_idle()
    sent, attempt = recorded.one("send ship"), recorded.one("process ship")
    assert parent_of(sent) == id_of(recorded.one("view"))
    assert parent_of(attempt) == id_of(sent)
    assert parent_of(recorded.one("inside")) == id_of(attempt)
    assert len({trace_of(span) for span in recorded.spans}) == 1
    assert (sent.kind, attempt.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "django_jobchains",
        "messaging.destination.name": "parcels",
        "messaging.message.id": str(chain.id),
        "messaging.message.conversation_id": str(chain.id),
        "jobchains.job.type": "ship",
    }
    assert dict(sent.attributes or {}) == {
        **common,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert dict(attempt.attributes or {}) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "jobchains.job.attempt": 1,
        "jobchains.job.outcome": "completed",
    }


def test_a_continuation_is_a_child_of_the_attempt_that_continues(recorded, processors, make_worker):
    @processors.register("pay")
    def pay(job):
        return job.continue_with("ship")

    @processors.register("ship")
    def ship(job): ...

    pay.enqueue()
    make_worker().run_until_idle()
    assert parent_of(recorded.one("send ship")) == id_of(recorded.one("process pay"))
    assert parent_of(recorded.one("process ship")) == id_of(recorded.one("send ship"))
    assert outcome_of(recorded, "pay") == "continued"
    assert len({trace_of(span) for span in recorded.spans}) == 1


def test_phases_are_children_of_the_attempt_and_parents_of_what_happens_in_them(recorded, processors, make_worker):
    @processors.register("pay")
    def pay(job):
        with job.prepare(), recorded.tracer.start_as_current_span("preparing"):
            pass
        with job.complete():
            return job.continue_with("ship")

    @processors.register("ship")
    def ship(job): ...

    pay.enqueue()
    make_worker().run_until_idle()
    attempt, prepare, complete = (recorded.one(name) for name in ("process pay", "prepare", "complete"))
    assert parent_of(prepare) == parent_of(complete) == id_of(attempt)
    assert parent_of(recorded.one("preparing")) == id_of(prepare)
    assert parent_of(recorded.one("send ship")) == id_of(complete)


def test_an_async_handler_and_its_phases_are_inside_the_attempt(recorded, processors, make_worker):
    @processors.register("fetch")
    async def fetch(job):
        with recorded.tracer.start_as_current_span("inside"):
            await job.acomplete(lambda: recorded.tracer.start_span("on a thread").end())
        return job.continue_with("ship")

    @processors.register("ship")
    async def ship(job): ...

    fetch.enqueue()
    make_worker().run_until_idle()
    attempt = recorded.one("process fetch")
    assert parent_of(recorded.one("inside")) == id_of(attempt)
    assert parent_of(recorded.one("complete")) == id_of(attempt)
    assert parent_of(recorded.one("on a thread")) == id_of(recorded.one("complete"))
    assert parent_of(recorded.one("send ship")) == id_of(attempt)
    assert parent_of(recorded.one("process ship")) == id_of(recorded.one("send ship"))


def test_a_batch_has_a_span_for_its_handler_and_one_for_each_job_in_the_trace_of_that_job(
    recorded, processors, make_worker
):
    @processors.register("mail", batch_limit=10)
    def mail(batch):
        with recorded.tracer.start_as_current_span("inside"):
            batch[0].finish(None)
            batch[1].retry()

    first, second = chains.enqueue_many([mail.item(), mail.item(max_attempts=1)])
    make_worker().run_until_idle()
    [batch] = [span for span in recorded.all("process mail") if span.parent is None]
    attempts = {job_id_of(span): span for span in recorded.all("process mail") if span.parent is not None}
    sent = {job_id_of(span): span for span in recorded.all("send mail")}
    assert parent_of(recorded.one("inside")) == id_of(batch)
    assert {link.context.span_id for link in batch.links} == {id_of(span) for span in sent.values()}
    assert (batch.attributes or {})["messaging.batch.message_count"] == 2
    for chain, outcome in ((first, "completed"), (second, "failed")):
        attempt = attempts[str(chain.id)]
        assert parent_of(attempt) == id_of(sent[str(chain.id)])
        assert (attempt.attributes or {})["jobchains.job.outcome"] == outcome


# Links


def test_with_links_each_attempt_is_a_trace_of_its_own(recorded, processors, make_worker, settings):
    settings.JOBCHAINS = {"TRACE_PROPAGATION": "link"}

    @processors.register("ship")
    def ship(job): ...

    with recorded.tracer.start_as_current_span("view"):
        ship.enqueue()
    make_worker().run_until_idle()
    sent, attempt = recorded.one("send ship"), recorded.one("process ship")
    assert attempt.parent is None
    assert trace_of(attempt) != trace_of(sent)
    assert [link.context.span_id for link in attempt.links] == [id_of(sent)]


def test_an_attempt_is_linked_to_the_blockers_it_waited_for(recorded, processors, make_worker):
    @processors.register("part")
    def part(job): ...

    @processors.register("whole")
    def whole(job): ...

    whole.enqueue(blockers=[part.enqueue(), part.enqueue()])
    make_worker().run_until_idle()
    links = {link.context.span_id for link in recorded.one("process whole").links}
    assert links == {id_of(span) for span in recorded.all("send part")}


def test_a_completion_without_a_worker_is_a_child_of_the_caller_with_a_link(recorded, processors):
    @processors.register("ship")
    def ship(job): ...

    chain = ship.enqueue()
    with recorded.tracer.start_as_current_span("webhook"), chains.current_job(chain) as current:
        current.continue_with(ship)
    first, second = sorted(recorded.all("send ship"), key=lambda span: span.start_time or 0)
    completion = recorded.one("complete ship")
    assert parent_of(completion) == id_of(recorded.one("webhook"))
    assert [link.context.span_id for link in completion.links] == [id_of(first)]
    assert parent_of(second) == id_of(completion)


def test_a_completion_in_a_savepoint_that_is_rolled_back_exports_nothing(recorded, processors):
    @processors.register("ship")
    def ship(job): ...

    with chains.current_job(ship.enqueue()) as current, pytest.raises(ZeroDivisionError), transaction.atomic():
        current.continue_with(ship)
        raise ZeroDivisionError
    assert recorded.names == ["send ship"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wait_is_a_child_of_the_caller_with_a_link(recorded, processors, start_worker, is_async):
    @processors.register("ship")
    def ship(job):
        return "sent"

    chain = ship.enqueue()
    start_worker()
    with recorded.tracer.start_as_current_span("view"):
        wait = async_to_sync(chains.await_chain) if is_async else chains.wait
        assert wait(chain, 20) == "sent"
    waited = recorded.one("wait ship")
    assert parent_of(waited) == id_of(recorded.one("view"))
    assert [link.context.span_id for link in waited.links] == [id_of(recorded.one("send ship"))]


# What is exported, and when


def test_what_was_rolled_back_exports_nothing(recorded, processors):
    @processors.register("ship")
    def ship(job): ...

    @processors.register("kept")
    def kept(job): ...

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ship.enqueue()
        raise ZeroDivisionError
    with transaction.atomic():
        kept.enqueue()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            chains.enqueue_many([ship.item() for _ in range(101)])
            raise ZeroDivisionError
        assert recorded.names == []
    assert recorded.names == ["send kept"]
    assert recorded.values("messaging.client.sent.messages") == [
        ({"jobchains.job.type": "kept", "messaging.destination.name": "default"}, 1)
    ]


def test_a_deduplicated_enqueue_exports_nothing(recorded, processors):
    @processors.register("ship")
    def ship(job): ...

    for _ in range(2):
        ship.enqueue(deduplicate=Deduplicate("key"))
    assert recorded.names == ["send ship"]


def test_more_than_a_hundred_jobs_of_one_call_share_a_span(recorded, processors, make_worker):
    @processors.register("ship")
    def ship(job): ...

    chains.enqueue_many([ship.item() for _ in range(100)])
    assert len(recorded.all("send ship")) == 100
    chains.enqueue_many([ship.item() for _ in range(101)])
    assert len(recorded.all("send ship")) == 101
    [shared] = [span for span in recorded.spans if "messaging.batch.message_count" in (span.attributes or {})]
    assert (shared.attributes or {})["messaging.batch.message_count"] == 101
    make_worker().run_until_idle()
    assert sum(parent_of(span) == id_of(shared) for span in recorded.all("process ship")) == 101


def test_a_failed_attempt_records_its_error_and_a_rescheduled_one_does_not(recorded, processors, make_worker):
    @processors.register("ship")
    def ship(job):
        if job.attempt == 1:
            raise RescheduleJob(delay=0)
        raise ValueError("password=hunter2")

    ship.enqueue(max_attempts=1)
    make_worker().run_until_idle()
    rescheduled, failed = sorted(recorded.all("process ship"), key=lambda span: span.start_time or 0)
    assert rescheduled.status.status_code is StatusCode.UNSET
    assert not rescheduled.events
    assert (rescheduled.attributes or {})["jobchains.job.outcome"] == "rescheduled"
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"
    [event] = failed.events
    assert (event.attributes or {})["exception.type"] == "ValueError"
    assert "hunter2" not in failed.to_json()


def test_an_attempt_that_lost_its_lease_says_so_and_its_continuation_is_not_exported(recorded, processors, make_worker):
    @processors.register("ship")
    def ship(job):
        chains.complete(job.chain_id)
        with job.complete():
            return job.continue_with("ship")

    ship.enqueue()
    make_worker().run_until_idle()
    attempt = recorded.one("process ship")
    assert (attempt.attributes or {})["jobchains.job.outcome"] == "abandoned"
    assert (attempt.attributes or {})["jobchains.attempt.abandoned_reason"] == "already_completed"
    assert attempt.status.status_code is StatusCode.UNSET
    assert len(recorded.all("send ship")) == 1
    assert recorded.values("jobchains.lease.lost") == [
        ({"jobchains.job.type": "ship", "jobchains.reason": "already_completed"}, 1)
    ]


# Contexts


def test_only_a_recorded_span_is_stored(processors):
    @processors.register("ship")
    def ship(job): ...

    with recording(sampler=ALWAYS_OFF):
        ship.enqueue()
        chains.enqueue_many([ship.item() for _ in range(101)])
        # A context with the trace of another job, as middleware restores it for jobs that a handler enqueues.
        with context.bound(traceparent=f"00-{1:032x}-{1:016x}-01", tenant="acme"):
            bound = ship.enqueue()
    assert set(Job.objects.exclude(pk=bound.id).values_list("context", flat=True)) == {None}
    assert bound.current_job.context == {"tenant": "acme"}


def test_in_an_attempt_that_is_not_sampled_nothing_is(processors, make_worker, settings):
    settings.JOBCHAINS = {"TRACE_PROPAGATION": "link"}

    @processors.register("pay")
    def pay(job):
        with job.prepare(), recorded.tracer.start_as_current_span("inside"):
            pass
        return job.continue_with("ship")

    @processors.register("ship", batch_limit=2)
    def ship(batch):
        with batch.complete(), recorded.tracer.start_as_current_span("inside a batch"):
            batch[0].finish(None)

    with recording(sampler=ParentBased(NoAttempts())) as recorded:
        chain = pay.enqueue()
        make_worker().run_until_idle()
        assert chain.refresh().status == "completed"
        assert chain.current_job.context is None
        assert recorded.names == ["send pay"]


class NoAttempts(Sampler):
    def should_sample(self, *args, **kwargs):
        sampler = ALWAYS_OFF if kwargs["kind"] is SpanKind.CONSUMER else ALWAYS_ON
        return sampler.should_sample(*args, **kwargs)

    def get_description(self):
        return "no attempts"


def test_the_values_of_the_job_stay_beside_its_trace(recorded, processors):
    @processors.register("ship")
    def ship(job): ...

    values = {"tenant": "acme", "baggage": "2 bags", "tracelinks": ["x"]}
    with context.bound(**values):
        stored = ship.enqueue(blockers=[ship.enqueue()]).current_job.context
    assert isinstance(stored, dict)
    assert {name: stored[name] for name in values} == values
    trace_id = format(trace_of(recorded.all("send ship")[-1]), "032x")
    assert stored["traceparent"].split("-")[1] == trace_id


def test_baggage_is_passed_on_when_asked_for(recorded, processors, make_worker, settings):
    seen = []

    @processors.register("ship")
    def ship(job):
        seen.append(baggage.get_baggage("user"))

    def enqueue():
        token = attach(baggage.set_baggage("user", "ada"))
        ship.enqueue()
        detach(token)

    enqueue()
    make_worker().run_until_idle()
    settings.JOBCHAINS = {"TRACE_BAGGAGE": True}
    enqueue()
    make_worker().run_until_idle()
    assert seen == [None, "ada"]


# Off


def test_tracing_that_fails_changes_no_outcome(processors, make_worker):
    class Broken(Sampler):
        def should_sample(self, *args, **kwargs):
            raise RuntimeError("broken sampler")

        def get_description(self):
            return "broken"

    @processors.register("ship")
    def ship(job):
        return job.continue_with("end")

    @processors.register("end", batch_limit=2)
    def end(batch): ...

    with recording(sampler=Broken()):
        chain = ship.enqueue()
        make_worker().run_until_idle()
    assert chain.refresh().status == "completed"


def test_nothing_is_recorded_after_uninstrument(processors, make_worker):
    @processors.register("ship")
    def ship(job): ...

    recorded, instrumentor = Recorded(), JobchainsInstrumentor()
    instrumentor.instrument(tracer_provider=recorded.tracers, meter_provider=recorded.meters)
    instrumentor.uninstrument()
    chain = ship.enqueue()
    make_worker().run_until_idle()
    assert chain.current_job.context is None
    assert (recorded.spans, recorded.metrics()) == ([], {})
    recorded.shutdown()


def outcome_of(recorded, type_name):
    return (recorded.one(f"process {type_name}").attributes or {})["jobchains.job.outcome"]


def job_id_of(span):
    return str((span.attributes or {}).get("messaging.message.id"))
