"""A chain is one trace, from its enqueue to its last attempt."""

import pytest
from asgiref.sync import async_to_sync
from cryptography.fernet import Fernet
from django.db import transaction
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, ParentBasedTraceIdRatio, Sampler
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from django_jobchains import chains, context
from django_jobchains.models import Job
from django_jobchains.processors import Deduplicate, RescheduleJob
from django_jobchains.telemetry.otel import JobchainsInstrumentor
from tests.records.models import Upload
from tests.support.attempts import committed
from tests.support.tracing import Recorded, id_of, parent_of, recording, trace_of

pytestmark = committed

OUTCOME = "jobchains.job.outcome"
OF_SPAN = {
    "send": {"messaging.operation.name": "send", "messaging.operation.type": "send"},
    "process": {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "jobchains.job.attempt": 1,
        OUTCOME: "completed",
    },
}


def links_of(span):
    return {link.context.span_id for link in span.links}


def in_order(spans):
    return sorted(spans, key=lambda span: span.start_time)


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
    assert dict(sent.attributes) == {**common, **OF_SPAN["send"]}
    assert dict(attempt.attributes) == {**common, **OF_SPAN["process"]}


def test_an_attempt_at_a_record_is_a_trace(recorded, processors, make_worker):
    @processors.records(Upload, queue="uploads")
    def upload(record, run):
        with run.complete(), recorded.tracer.start_as_current_span("inside"):
            pass

    record = Upload.objects.create()
    make_worker().run_until_idle()
    attempt, complete = recorded.one("process records.upload"), recorded.one("complete")
    assert (attempt.kind, parent_of(attempt)) == (SpanKind.CONSUMER, None)
    assert parent_of(complete) == id_of(attempt)
    assert parent_of(recorded.one("inside")) == id_of(complete)
    assert dict(attempt.attributes) == {
        "messaging.system": "django_jobchains",
        "messaging.destination.name": "uploads",
        "messaging.message.id": str(record.pk),
        "jobchains.job.type": "records.upload",
        **OF_SPAN["process"],
    }


def test_phases_are_children_of_the_attempt_and_parents_of_what_happens_in_them(
    recorded, processors, ship, make_worker
):
    @processors.register("pay")
    def pay(job):
        with job.prepare(), recorded.tracer.start_as_current_span("preparing"):
            pass
        with job.complete():
            return job.continue_with(ship)

    pay.enqueue()
    make_worker().run_until_idle()
    attempt, prepare, complete = (recorded.one(name) for name in ("process pay", "prepare", "complete"))
    assert parent_of(prepare) == parent_of(complete) == id_of(attempt)
    assert parent_of(recorded.one("preparing")) == id_of(prepare)
    assert parent_of(recorded.one("send ship")) == id_of(complete)
    assert parent_of(recorded.one("process ship")) == id_of(recorded.one("send ship"))
    assert attempt.attributes[OUTCOME] == "continued"
    assert len({trace_of(span) for span in recorded.spans}) == 1


def test_an_async_handler_and_its_phases_are_inside_the_attempt(recorded, processors, ship, make_worker):
    @processors.register("fetch")
    async def fetch(job):
        with recorded.tracer.start_as_current_span("inside"):
            await job.acomplete(lambda: recorded.tracer.start_span("on a thread").end())
        return job.continue_with(ship)

    fetch.enqueue()
    make_worker().run_until_idle()
    attempt = id_of(recorded.one("process fetch"))
    assert {parent_of(recorded.one(name)) for name in ("inside", "complete", "send ship")} == {attempt}
    assert parent_of(recorded.one("on a thread")) == id_of(recorded.one("complete"))


def test_a_batch_has_a_span_for_its_handler_and_one_for_each_job_in_the_trace_of_that_job(
    recorded, processors, make_worker
):
    @processors.register("mail", batch_limit=10)
    def mail(batch):
        with recorded.tracer.start_as_current_span("inside"):
            batch[0].finish(None)
            batch[1].retry()

    made = chains.enqueue_many([mail.item(), mail.item(max_attempts=1)])
    make_worker().run_until_idle()
    [batch] = [span for span in recorded.all("process mail") if span.parent is None]
    assert parent_of(recorded.one("inside")) == id_of(batch)
    assert batch.attributes["messaging.batch.message_count"] == 2
    sent = {span.attributes["messaging.message.id"]: id_of(span) for span in recorded.all("send mail")}
    assert links_of(batch) == set(sent.values())
    attempts = {
        span.attributes["messaging.message.id"]: (parent_of(span), span.attributes[OUTCOME])
        for span in recorded.all("process mail")
        if span is not batch and span.parent is not None
    }
    first, second = (str(chain.id) for chain in made)
    assert attempts == {first: (sent[first], "completed"), second: (sent[second], "failed")}


# Links


def test_with_links_each_attempt_is_a_trace_of_its_own(recorded, ship, make_worker, settings):
    settings.JOBCHAINS = {"TRACE_PROPAGATION": "link"}
    with recorded.tracer.start_as_current_span("view"):
        ship.enqueue()
    make_worker().run_until_idle()
    sent, attempt = recorded.one("send ship"), recorded.one("process ship")
    assert (attempt.parent, links_of(attempt)) == (None, {id_of(sent)})
    assert trace_of(attempt) != trace_of(sent)


def test_an_attempt_is_linked_to_the_blockers_it_waited_for(recorded, processors, ship, make_worker):
    whole = processors.register("whole")(lambda job: None)
    whole.enqueue(blockers=[ship.enqueue(), ship.enqueue()])
    make_worker().run_until_idle()
    assert links_of(recorded.one("process whole")) == {id_of(span) for span in recorded.all("send ship")}


def test_a_completion_without_a_worker_is_a_child_of_the_caller_with_a_link(recorded, ship):
    chain = ship.enqueue()
    with recorded.tracer.start_as_current_span("webhook"), chains.current_job(chain) as current:
        current.continue_with(ship)
    first, second = in_order(recorded.all("send ship"))
    completion = recorded.one("complete ship")
    assert parent_of(completion) == id_of(recorded.one("webhook"))
    assert links_of(completion) == {id_of(first)}
    assert parent_of(second) == id_of(completion)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_wait_is_a_child_of_the_caller_with_a_link(recorded, ship, start_worker, is_async):
    chain = ship.enqueue()
    start_worker()
    with recorded.tracer.start_as_current_span("view"):
        (async_to_sync(chains.await_chain) if is_async else chains.wait)(chain, 20)
    waited = recorded.one("wait ship")
    assert parent_of(waited) == id_of(recorded.one("view"))
    assert links_of(waited) == {id_of(recorded.one("send ship"))}


# What is exported, and when


def test_what_was_rolled_back_exports_nothing(recorded, ship):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ship.enqueue()
        raise ZeroDivisionError
    with transaction.atomic():
        kept = ship.enqueue()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            chains.enqueue_many([ship.item() for _ in range(101)])
            raise ZeroDivisionError
        assert recorded.names == []
    with chains.current_job(kept) as current, pytest.raises(ZeroDivisionError), transaction.atomic():
        current.continue_with(ship)
        raise ZeroDivisionError
    assert recorded.names == ["send ship"]
    assert [count for _, count in recorded.values("messaging.client.sent.messages")] == [1]


def test_a_deduplicated_enqueue_exports_nothing(recorded, ship):
    for _ in range(2):
        ship.enqueue(deduplicate=Deduplicate("key"))
    assert recorded.names == ["send ship"]


def test_an_attempt_is_a_child_of_the_enqueue_that_replaced_its_input(recorded, ship, make_worker):
    chain = ship.enqueue(deduplicate=Deduplicate("key"))
    with recorded.tracer.start_as_current_span("second"):
        ship.enqueue(deduplicate=Deduplicate("key", replace=("input",)))
    make_worker().run_until_idle()
    first, second = in_order(recorded.all("send ship"))
    attempt = recorded.one("process ship")
    assert parent_of(second) == id_of(recorded.one("second"))
    assert parent_of(attempt) == id_of(second)
    assert dict(second.attributes) == dict(first.attributes)
    assert second.attributes["messaging.message.id"] == str(chain.id)
    assert [count for _, count in recorded.values("messaging.client.sent.messages")] == [1]


def test_more_than_a_hundred_jobs_of_one_call_share_a_span(recorded, ship, make_worker):
    chains.enqueue_many([ship.item() for _ in range(100)])
    assert len(recorded.all("send ship")) == 100
    chains.enqueue_many([ship.item() for _ in range(101)])
    assert len(recorded.all("send ship")) == 101
    [shared] = [span for span in recorded.spans if "messaging.batch.message_count" in span.attributes]
    assert shared.attributes["messaging.batch.message_count"] == 101
    make_worker().run_until_idle()
    assert sum(parent_of(span) == id_of(shared) for span in recorded.all("process ship")) == 101


def test_a_failed_attempt_records_its_error_and_a_rescheduled_one_does_not(recorded, processors, make_worker):
    @processors.register("ship")
    def ship(job):
        if job.attempt == 1:
            raise RescheduleJob(delay=0)
        raise ValueError("password=hunter2")

    @processors.records(Upload, max_attempts=1)
    def upload(record, run):
        raise ValueError("password=hunter2")

    ship.enqueue(max_attempts=1)
    Upload.objects.create()
    make_worker().run_until_idle()
    rescheduled, failed = in_order(recorded.all("process ship"))
    assert (rescheduled.status.status_code, rescheduled.events) == (StatusCode.UNSET, ())
    assert rescheduled.attributes[OUTCOME] == "rescheduled"
    for span in (failed, recorded.one("process records.upload")):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes[OUTCOME], span.attributes["error.type"]) == ("failed", "ValueError")
        assert [event.attributes["exception.type"] for event in span.events] == ["ValueError"]
        assert "hunter2" not in span.to_json()


@pytest.mark.parametrize("keys", [[], [Fernet.generate_key()]], ids=["plain", "encrypted"])
def test_a_chain_of_on_failure_is_sent_in_the_trace_of_the_failed_job(
    recorded, processors, make_worker, settings, keys
):
    backend = "django_jobchains.payloads.codecs.FernetCodec"
    codec = {"BACKEND": backend, "OPTIONS": {"keys": keys}} if keys else {}
    settings.JOBCHAINS = {"TRACE_BAGGAGE": True, "PAYLOAD_CODEC": codec}
    seen = []

    @processors.register("alert", queue="alerts")
    def alert(job):
        seen.append((job.context["tenant"], baggage.get_baggage("user")))

    @processors.register("pay", on_failure=alert, max_attempts=1)
    def pay(job):
        raise ValueError

    token = attach(baggage.set_baggage("user", "ada"))
    with context.bound(tenant="acme"), recorded.tracer.start_as_current_span("view"):
        pay.enqueue()
    detach(token)
    make_worker().run_until_idle()
    job, sent = Job.objects.of_type("alert").get(), recorded.one("send alert")
    assert parent_of(sent) == id_of(recorded.one("send pay"))
    assert parent_of(recorded.one("process alert")) == id_of(sent)
    assert len({trace_of(span) for span in recorded.spans}) == 1
    assert sent.attributes["messaging.message.id"] == str(job.id)
    assert sent.attributes["messaging.destination.name"] == "alerts"
    assert seen == [("acme", "ada")]


def test_a_chain_of_on_failure_that_is_rolled_back_exports_nothing(recorded, processors, ship):
    chain = processors.register("pay", on_failure=ship, on_blocker_failure="fail")(lambda job: None).enqueue(
        blockers=[blocker := processors.register("stock")(lambda job: None).enqueue()]
    )
    with transaction.atomic():
        chains.cancel(blocker)
        transaction.set_rollback(True)
    assert recorded.all("send ship") == []
    chains.cancel(blocker)
    assert (chain.refresh().status, len(recorded.all("send ship"))) == ("failed", 1)


def test_an_attempt_that_lost_its_lease_says_so_and_its_continuation_is_not_exported(recorded, processors, make_worker):
    @processors.register("ship")
    def ship(job):
        chains.complete(job.chain_id)
        with job.complete():
            return job.continue_with("ship")

    @processors.records(Upload)
    def upload(record, run):
        Upload.objects.all().delete()
        with run.complete():
            pass

    ship.enqueue()
    Upload.objects.create()
    make_worker().run_until_idle()
    reasons = {"ship": "already_completed", "records.upload": "not_found"}
    for name, reason in reasons.items():
        attempt = recorded.one(f"process {name}")
        assert (attempt.attributes[OUTCOME], attempt.status.status_code) == ("abandoned", StatusCode.UNSET)
        assert attempt.attributes["jobchains.attempt.abandoned_reason"] == reason
    lost = recorded.values("jobchains.lease.lost")
    assert {(found["jobchains.job.type"], found["jobchains.reason"]) for found, _ in lost} == set(reasons.items())
    assert {count for _, count in lost} == {1}
    assert len(recorded.all("send ship")) == 1


# Contexts


def test_only_a_recorded_span_is_stored(ship):
    with recording(sampler=ALWAYS_OFF):
        ship.enqueue()
        chains.enqueue_many([ship.item() for _ in range(101)])
        # A context with the trace of another job, as middleware restores it for jobs that a handler enqueues.
        with context.bound(traceparent=f"00-{1:032x}-{1:016x}-01", tenant="acme"):
            bound = ship.enqueue()
    assert set(Job.objects.exclude(pk=bound.id).values_list("context", flat=True)) == {None}
    assert bound.current_job.context == {"tenant": "acme"}


class Sampling(Sampler):
    """Samples with the sampler that a function returns for the kind of a span."""

    def __init__(self, sampler_of):
        self._sampler_of = sampler_of

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        return self._sampler_of(kind).should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self):
        return "of the test"


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

    no_attempts = Sampling(lambda kind: ALWAYS_OFF if kind is SpanKind.CONSUMER else ALWAYS_ON)
    with recording(sampler=ParentBased(no_attempts)) as recorded:
        chain = pay.enqueue()
        make_worker().run_until_idle()
        assert (chain.refresh().status, chain.current_job.context) == ("completed", None)
        assert recorded.names == ["send pay"]


class Ids(RandomIdGenerator):
    """Counts the ids of spans, and generates these ids of traces."""

    def __init__(self, *trace_ids):
        self._trace_ids = iter(trace_ids)
        self.spans = 0

    def generate_trace_id(self):
        return next(self._trace_ids)

    def generate_span_id(self):
        self.spans += 1
        return super().generate_span_id()


def test_a_share_of_the_traces_is_sampled_by_their_ids(ship, make_worker):
    """An id is sampled whose last 64 bits are below the share of their range."""
    chains.enqueue_many([ship.item(), ship.item()])  # Without a trace.
    below, above = 2**64 + 2**62, 2**64 + 2**63
    with recording(sampler=ParentBasedTraceIdRatio(0.5), id_generator=Ids(above, below)) as recorded:
        make_worker().run_until_idle()
        assert trace_of(recorded.one("process ship")) == below
    with recording(sampler=ParentBasedTraceIdRatio(0.5), id_generator=Ids(above, below)) as recorded:
        chains.enqueue_many([ship.item(), ship.item()])
        assert trace_of(recorded.one("send ship")) == below


def test_no_span_is_created_for_a_new_trace_that_is_not_sampled(processors, ship, make_worker):
    @processors.register("order")
    def order(job):
        ship.enqueue()

    not_sampled = Ids(*range(2**63, 2**63 + 3))  # Of the chain of ``order``, and of the two attempts.
    with recording(sampler=ParentBasedTraceIdRatio(0.5), id_generator=not_sampled):
        order.enqueue()
        make_worker().run_until_idle()
    assert [(job.status, job.context) for job in Job.objects.all()] == [("completed", None)] * 2
    assert not_sampled.spans == 0


def test_a_handler_in_a_trace_that_is_not_sampled_has_its_trace_context(processors, make_worker):
    seen = []

    @processors.register("ship")
    def ship(job):
        attempt = get_current_span().get_span_context()
        with recorded.tracer.start_as_current_span("inside") as inside:
            assert inside.get_span_context().trace_id == attempt.trace_id
        assert get_current_span().get_span_context() == attempt
        seen.append(attempt)

    chains.enqueue_many([ship.item(), ship.item()])
    with recording(sampler=ParentBasedTraceIdRatio(0.5), id_generator=Ids(2**63, 2**63 + 1)) as recorded:
        make_worker().run_until_idle()
        assert recorded.names == []
    assert [context.trace_id for context in seen] == [2**63, 2**63 + 1]
    assert [(context.is_valid, context.trace_flags.sampled) for context in seen] == [(True, False)] * 2


def test_tracing_that_fails_changes_no_outcome(processors, make_worker):
    def fail(kind):
        raise RuntimeError("broken sampler")

    pay = processors.register("pay")(lambda job: job.continue_with("ship"))
    processors.register("ship", batch_limit=2)(lambda batch: None)
    with recording(sampler=Sampling(fail)):
        chain = pay.enqueue()
        make_worker().run_until_idle()
    assert chain.refresh().status == "completed"


class FailingProcessor(SpanProcessor):
    """Fails when a span inside of an attempt, or of another call, starts or ends. ``fails_at``: that method's name."""

    def __init__(self, fails_at):
        setattr(self, fails_at, self.fail)

    def fail(self, span, parent_context=None):
        if span.kind is SpanKind.INTERNAL:
            raise RuntimeError("broken processor")


@pytest.mark.parametrize("fails_at", ["on_start", "on_end"])
def test_span_processor_that_fails_changes_no_outcome(processors, make_worker, fails_at):
    @processors.register("ship")
    def ship(job):
        with job.prepare():
            pass
        with job.complete():
            return "sent"

    with recording() as recorded:
        recorded.tracers.add_span_processor(FailingProcessor(fails_at))
        shipped, completed = ship.enqueue(), ship.enqueue()
        with chains.current_job(completed.id) as current:
            current.finish("by hand")
        make_worker().run_until_idle()
        assert [chains.wait(chain.id, 20) for chain in (shipped, completed)] == ["sent", "by hand"]
        assert shipped.refresh().current_job.attempt == 1


def test_sampler_gets_attributes_of_every_span(processors, make_worker):
    class ByType(Sampling):
        def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None):
            attributes.get("jobchains.job.type")
            return super().should_sample(parent_context, trace_id, name, kind, attributes, links)

    @processors.register("ship")
    def ship(job):
        with job.prepare():
            pass

    with recording(sampler=ByType(lambda kind: ALWAYS_ON)) as recorded:
        ship.enqueue()
        make_worker().run_until_idle()
        assert recorded.names == ["prepare", "process ship", "send ship"]


def test_the_values_of_the_job_stay_beside_its_trace(recorded, ship):
    values = {"tenant": "acme", "baggage": "2 bags", "tracelinks": ["x"]}
    with context.bound(**values):
        stored = ship.enqueue(blockers=[ship.enqueue()]).current_job.context
    assert {name: stored[name] for name in values} == values
    trace_id = format(trace_of(recorded.all("send ship")[-1]), "032x")
    assert stored["traceparent"].split("-")[1] == trace_id


def test_baggage_is_passed_on_when_asked_for(recorded, processors, make_worker, settings):
    seen = []
    ship = processors.register("ship")(lambda job: seen.append(baggage.get_baggage("user")))
    for is_passed_on in (False, True):
        settings.JOBCHAINS = {"TRACE_BAGGAGE": is_passed_on}
        token = attach(baggage.set_baggage("user", "ada"))
        ship.enqueue()
        detach(token)
        make_worker().run_until_idle()
    assert seen == [None, "ada"]


def test_nothing_is_recorded_after_uninstrument(ship, make_worker):
    recorded, instrumentor = Recorded(), JobchainsInstrumentor()
    instrumentor.instrument(tracer_provider=recorded.tracers, meter_provider=recorded.meters)
    instrumentor.uninstrument()
    chain = ship.enqueue()
    make_worker().run_until_idle()
    assert (chain.current_job.context, recorded.spans, recorded.metrics()) == (None, [], {})
    recorded.shutdown()
