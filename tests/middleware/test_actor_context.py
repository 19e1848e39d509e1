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
from tests.support.scenario import JOBS, complete, kinds, outside

pytestmark = committed

other = JobType("other")


@pytest.fixture
def acting(scenario):
    """A scenario with the middleware."""
    return scenario.with_middleware(ActorContext())


def test_context_is_bound_in_the_handler_and_in_chains_that_it_enqueues(acting):
    seen = []

    def act(actor):
        seen.append(dict(context.current()))
        with context.bound(actor=actor):
            other.enqueue()

    def acts(jobs):
        yield outside(lambda: act("job"))
        yield complete(lambda: act("in complete"))

    with context.bound(tenant="acme", actor="ada"):
        acting.enqueue(acts)
    acting.run()
    assert seen == [{"tenant": "acme", "actor": "ada"}] * 2
    stored = Job.objects.of_type("other").order_by("created_at", "id").values_list("context", flat=True)
    assert list(stored) == [{"tenant": "acme", "actor": actor} for actor in ("job", "in complete")]


@pytest.mark.parametrize("bound", [{}, {"tenant": "acme"}])
@kinds(*JOBS)
def test_without_the_middleware_or_a_context_nothing_is_bound(scenario, acting, bound):
    used = scenario if bound else acting
    with context.bound(**bound):
        used.enqueue(lambda jobs: (yield outside(lambda: other.enqueue())))
    used.run()
    assert Job.objects.of_type("other").get().context is None


def test_only_the_stored_context_is_bound(acting):
    seen = []

    def acts(jobs):
        jobs[0].context["tenant"] = object()
        seen.append((yield outside(lambda: dict(context.current()))))

    with context.bound(tenant="acme"):
        acting.enqueue(acts)
    acting.run()
    assert seen == [{"tenant": "acme"}]


@pytest.mark.parametrize("values", [{}, {"actor": 1}, {"tenant": None, "actor": 1}, {"tenant": "acme"}])
def test_job_without_required_values_fails_before_its_handler_runs(scenario, values):
    ran = []
    scenario = scenario.with_middleware(ActorContext(require=["tenant"]))
    with context.bound(**values):
        scenario.enqueue(lambda jobs: (yield outside(lambda: ran.append(context.current()["tenant"]))))
    scenario.run()
    is_complete = bool(values.get("tenant"))
    assert ran == (["acme"] if is_complete else [])
    assert scenario.states() == {"completed" if is_complete else "failed"}
    if not is_complete:
        error = "FailJob: Its context has no tenant. Enqueue it inside context.bound(tenant=…)."
        assert scenario.errors() == {error}


def test_context_is_bound_in_async_code_of_a_plain_handler(acting, work):
    @acting.processors.register("acts")
    def acts(job):
        async def read():
            return [context.current()["tenant"], (await sync_to_async(context.current)())["tenant"]]

        return async_to_sync(read)()

    with context.bound(tenant="acme"):
        chain = acts.enqueue()
    work(acting.processors)
    assert chain.result(0) == ["acme", "acme"]


# Batches: what their jobs have in common


@pytest.fixture
def run_batch(work):
    """Return a function that runs jobs with these contexts in a batch, and returns their chains and what it saw."""

    def run(middleware, contexts):
        seen = []
        processors = processors_with(middleware)

        @processors.register("batch", batch_limit=10)
        def handle(jobs):
            seen.append((len(jobs), jobs.context, dict(context.current()), [job.context for job in jobs]))

        chains = []
        for values in contexts:
            with context.bound(**values):
                chains.append(handle.enqueue())
        work(processors, slots=1)
        return chains, seen

    return run


OWN = [{"tenant": "acme", "flag": 1, "r": number, f"only{number}": number} for number in range(2)]


@pytest.mark.parametrize(
    ("contexts", "shared"),
    [
        (OWN, {"tenant": "acme", "flag": 1}),
        ([{"tenant": 1}, {"tenant": "umbrella"}], {}),
        ([{"tenant": 1}, {"tenant": True}], {}),
        ([{"tenant": 1}, {}], {}),
    ],
)
def test_context_of_a_batch_contains_what_its_jobs_have_in_common(run_batch, contexts, shared):
    assert run_batch(ActorContext(), contexts)[1] == [(2, shared, shared, contexts)]


@pytest.mark.parametrize(
    ("contexts", "statuses"),
    [
        ([{"tenant": "acme"}, {"actor": 1}, {"tenant": "acme"}], ["completed", "failed", "completed"]),
        ([{}, {}], ["failed", "failed"]),
    ],
)
def test_job_of_a_batch_without_required_values_fails_alone(run_batch, contexts, statuses):
    """The handler does not get it, and does not run if no job is left."""
    chains, seen = run_batch(ActorContext(require=["tenant"]), contexts)
    assert [chain.refresh().status for chain in chains] == statuses
    assert "Its context has no tenant" in chains[1].current_job.last_error
    tenant = {"tenant": "acme"}
    assert [(count, current) for count, _, current, _ in seen] == ([(2, tenant)] if "completed" in statuses else [])


@pytest.mark.parametrize("wrong", ["tenant", [1]])
def test_require_must_be_a_list_of_names(wrong):
    with pytest.raises(RegistryError, match="a list of names"):
        ActorContext(require=wrong)
