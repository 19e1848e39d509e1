"""For whom a job runs: what was bound for its chain is bound again in its handler."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_jobchains import context
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import ActorContext
from django_jobchains.models import Job
from django_jobchains.processors import JobType, RunningJob
from tests.attempts.work import Work, committed
from tests.middleware.recording import slice_with

pytestmark = committed

other: JobType[Any, Any] = JobType("other")


def test_it_is_bound_while_the_handler_runs_and_in_what_it_enqueues(work: Work) -> None:
    seen: list[dict[str, Any]] = []
    processors = slice_with(ActorContext())

    @processors.register("acts")
    def acts(job: RunningJob[Any]) -> None:
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


def test_without_it_chains_that_the_handler_enqueues_have_nothing(work: Work) -> None:
    processors = slice_with()
    acts = processors.register("acts")(lambda job: other.enqueue().id and None)
    with context.bound(tenant="acme"):
        acts.enqueue()
    work(processors)
    assert Job.objects.of_type("other").get().context is None


def test_only_what_is_stored_is_bound(work: Work) -> None:
    seen: list[dict[str, Any]] = []
    processors = slice_with(ActorContext())

    @processors.register("acts")
    def acts(job: RunningJob[Any]) -> None:
        job.context["tenant"] = object()
        seen.append(dict(context.current()))

    with context.bound(tenant="acme"):
        acts.enqueue()
    work(processors)
    assert seen == [{"tenant": "acme"}]


@pytest.mark.parametrize("values", [{}, {"actor": 1}, {"tenant": None, "actor": 1}])
def test_a_job_without_what_is_required_fails_before_its_handler_runs(work: Work, values: dict[str, Any]) -> None:
    processors = slice_with(ActorContext(require=("tenant",)))

    @processors.register("acts")
    def acts(job: RunningJob[Any]) -> None:
        raise AssertionError("it ran")

    with context.bound(**values):
        chain = acts.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("failed", 1)
    assert job.last_error == "FailJob: Its context has no tenant. Enqueue it inside context.bound(tenant=…)."


def test_a_job_with_what_is_required_runs(work: Work) -> None:
    processors = slice_with(ActorContext(require=["tenant", "actor"]))
    acts = processors.register("acts")(lambda job: context.current()["tenant"])
    with context.bound(tenant="acme", actor=0):
        chain = acts.enqueue()
    work(processors)
    assert chain.result(0) == "acme"


def test_it_follows_async_code(work: Work) -> None:
    processors = slice_with(ActorContext())

    @processors.register("acts")
    def acts(job: RunningJob[Any]) -> Any:
        async def look() -> list[Any]:
            return [context.current()["tenant"], (await sync_to_async(context.current)())["tenant"]]

        return async_to_sync(look)()

    with context.bound(tenant="acme"):
        chain = acts.enqueue()
    work(processors)
    assert chain.result(0) == ["acme", "acme"]


@pytest.mark.parametrize("wrong", ["tenant", [1]])
def test_what_is_required_is_a_list_of_names(wrong: Any) -> None:
    with pytest.raises(RegistryError, match="a list of names"):
        ActorContext(require=wrong)
