"""``ActorContext`` binds the context of a chain again while its handlers run."""

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains import context
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import ActorContext
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.middleware.recording import processors_with
from tests.support.attempts import committed

pytestmark = committed

other = JobType("other")


def test_context_is_bound_in_the_handler_and_in_chains_that_it_enqueues(work):
    seen = []
    processors = processors_with(ActorContext())

    @processors.register("acts")
    def acts(job):
        seen.append(dict(context.current()))
        with job.complete():
            seen.append(dict(context.current()))
            with context.bound(actor="job"):
                other.enqueue()

    with context.bound(tenant="acme", actor="ada"):
        acts.enqueue()
    acts.enqueue()
    work(processors, slots=1)
    assert seen == [{"tenant": "acme", "actor": "ada"}] * 2 + [{}] * 2
    stored = Job.objects.of_type("other").order_by("created_at", "id").values_list("context", flat=True)
    assert list(stored) == [{"tenant": "acme", "actor": "job"}, {"actor": "job"}]


def test_without_the_middleware_chains_that_the_handler_enqueues_have_no_context(work):
    processors = processors_with()
    acts = processors.register("acts")(lambda job: other.enqueue().id and None)
    with context.bound(tenant="acme"):
        acts.enqueue()
    work(processors)
    assert Job.objects.of_type("other").get().context is None


def test_only_the_stored_context_is_bound(work):
    seen = []
    processors = processors_with(ActorContext())

    @processors.register("acts")
    def acts(job):
        job.context["tenant"] = object()
        seen.append(dict(context.current()))

    with context.bound(tenant="acme"):
        acts.enqueue()
    work(processors)
    assert seen == [{"tenant": "acme"}]


@pytest.mark.parametrize("values", [{}, {"actor": 1}, {"tenant": None, "actor": 1}])
def test_job_without_required_values_fails_before_its_handler_runs(work, values):
    processors = processors_with(ActorContext(require=("tenant",)))

    @processors.register("acts")
    def acts(job):
        raise AssertionError("The handler ran.")

    with context.bound(**values):
        chain = acts.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("failed", 1)
    assert job.last_error == "FailJob: Its context has no tenant. Enqueue it inside context.bound(tenant=…)."


def test_job_with_the_required_values_runs(work):
    processors = processors_with(ActorContext(require=["tenant", "actor"]))
    acts = processors.register("acts")(lambda job: context.current()["tenant"])
    with context.bound(tenant="acme", actor=0):
        chain = acts.enqueue()
    work(processors)
    assert chain.result(0) == "acme"


def test_context_is_bound_in_async_code(work):
    processors = processors_with(ActorContext())

    @processors.register("acts")
    def acts(job):
        async def read():
            return [context.current()["tenant"], (await sync_to_async(context.current)())["tenant"]]

        return async_to_sync(read)()

    with context.bound(tenant="acme"):
        chain = acts.enqueue()
    work(processors)
    assert chain.result(0) == ["acme", "acme"]


@pytest.mark.parametrize("wrong", ["tenant", [1]])
def test_require_must_be_a_list_of_names(wrong):
    with pytest.raises(RegistryError, match="a list of names"):
        ActorContext(require=wrong)
