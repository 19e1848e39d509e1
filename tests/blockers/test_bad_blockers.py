"""Blockers that cannot be waited for are a clear error, and nothing is created."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.exceptions import ChainNotFound, InvalidBlockers, JobchainsError
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.store import Store
from tests.attempts.work import Work, committed
from tests.blockers.kinds import STEP, WAITS, by_hand, statuses
from tests.blockers.oracle import assert_sound
from tests.store.jobs import tables

pytestmark = committed

PICKY: JobType[Any, Any] = JobType("blockers.picky", blockers=[STEP, "blockers.other"])
ALONE: JobType[Any, Any] = JobType("blockers.alone", blockers=[])
UNKNOWN = uuid4()

Blockers = Callable[[Chain], list[Any]]

BAD: dict[str, tuple[JobType[Any, Any], Blockers, type[JobchainsError], str]] = {
    "twice": (STEP, lambda chain: [chain, chain.id], InvalidBlockers, "twice"),
    "unknown": (STEP, lambda chain: [chain, UNKNOWN], ChainNotFound, str(UNKNOWN)),
    "a type not accepted": (PICKY, lambda chain: [WAITS.enqueue()], InvalidBlockers, "'blockers.waits'"),
    "any, where none is accepted": (ALONE, lambda chain: [chain], InvalidBlockers, "accepts blockers of none"),
}
bad = pytest.mark.parametrize(("job_type", "blockers", "error", "text"), BAD.values(), ids=BAD)


@bad
def test_enqueueing_with_bad_blockers_creates_nothing(
    job_type: JobType[Any, Any], blockers: Blockers, error: type[JobchainsError], text: str
) -> None:
    given = blockers(STEP.enqueue())
    before = tables()
    with pytest.raises(error, match=text):
        job_type.enqueue(blockers=given)
    with pytest.raises(error, match=text):
        chains.enqueue_many([STEP.item(), job_type.item(blockers=given), STEP.item()])
    assert tables() == before


@bad
def test_the_callers_transaction_goes_on_after_bad_blockers(
    job_type: JobType[Any, Any], blockers: Blockers, error: type[JobchainsError], text: str
) -> None:
    given = blockers(STEP.enqueue())
    before = tables()
    with transaction.atomic():
        with pytest.raises(error, match=text):
            job_type.enqueue(blockers=given)
        assert tables() == before
        after = STEP.enqueue()
    assert statuses(after) == ["pending"]


@bad
def test_going_on_by_hand_with_bad_blockers_changes_nothing(
    job_type: JobType[Any, Any], blockers: Blockers, error: type[JobchainsError], text: str
) -> None:
    given = blockers(STEP.enqueue())
    chain = STEP.enqueue()
    before = tables()
    with pytest.raises(error, match=text), chains.complete(chain.id) as current:
        current.continue_with(job_type, blockers=given)
    assert tables() == before


@bad
def test_bad_blockers_that_are_caught_in_the_block_leave_the_job_as_it_was(
    store: Store, job_type: JobType[Any, Any], blockers: Blockers, error: type[JobchainsError], text: str
) -> None:
    given = blockers(STEP.enqueue())
    chain = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[chain])
    before = tables()
    with chains.complete(chain.id) as current:
        with pytest.raises(error, match=text):
            current.continue_with(job_type, blockers=given)
        assert current.job.status == "pending"
    assert tables() == before
    by_hand(chain)
    assert statuses(dependent) == ["pending"]
    assert_sound(store)


@bad
@pytest.mark.parametrize("place", ["returned", "complete"])
def test_a_handler_that_goes_on_with_bad_blockers_has_not_completed(
    processors: Processors,
    work: Work,
    store: Store,
    place: str,
    job_type: JobType[Any, Any],
    blockers: Blockers,
    error: type[JobchainsError],
    text: str,
) -> None:
    given = blockers(STEP.enqueue())

    @processors.register("first", max_attempts=1)
    def first(job: RunningJob[None]) -> Any:
        if place == "returned":
            return job.continue_with(job_type, blockers=given)
        with job.complete():
            return job.continue_with(job_type, blockers=given)

    chain = first.enqueue()
    neighbours = [chains.enqueue(processors_type(processors)) for _ in range(3)]
    work(slots=4)
    job = Job.objects.get(chain_id=chain.id)
    assert (job.status, job.output) == ("failed", None)
    assert text in str(job.last_error)
    assert statuses(*neighbours) == ["completed"] * 3
    assert_sound(store)


def processors_type(processors: Processors) -> JobType[Any, Any]:
    """A type whose jobs complete, in the same batches as those that do not."""
    if "good" not in processors.by_name:
        processors.register("good")(lambda job: None)
    return processors.by_name["good"].job_type


def test_a_job_cannot_wait_for_itself() -> None:
    own = uuid4()
    with pytest.raises(InvalidBlockers, match="itself"):
        STEP.enqueue(id=own, blockers=[own])
    chain = STEP.enqueue()
    before = tables()
    with pytest.raises(InvalidBlockers, match="itself"), chains.complete(chain.id) as current:
        current.continue_with(STEP, blockers=[chain])
    assert tables() == before


def test_a_continuations_id_is_no_chain() -> None:
    chain = STEP.enqueue()
    with chains.complete(chain.id) as current:
        current.continue_with(STEP)
    with pytest.raises(ChainNotFound):
        WAITS.enqueue(blockers=[chain.refresh().current_job.id])


@pytest.mark.parametrize("value", ["no id", 3, None])
def test_a_blocker_is_a_chain_or_an_id(value: Any) -> None:
    with pytest.raises(TypeError, match=r"blockers expects a uuid\.UUID, a Chain or a Job"):
        STEP.enqueue(blockers=[value])


@pytest.mark.parametrize(
    "given",
    [lambda chain: chain, lambda chain: chain.id, lambda chain: (one for one in [chain]), lambda chain: [last(chain)]],
    ids=["a chain", "an id", "a generator", "a later job"],
)
def test_blockers_are_one_or_several_chains_ids_or_jobs(given: Callable[[Chain], Any]) -> None:
    chain = STEP.enqueue()
    with chains.complete(chain) as current:
        current.continue_with(STEP)
    dependent = WAITS.enqueue(blockers=given(chain))
    assert [link.blocker_id for link in dependent.current_job.blocker_links.all()] == [chain.id]


def last(chain: Chain) -> Job:
    return chain.refresh().current_job


def test_the_type_of_the_chain_counts_and_not_that_of_the_job_it_is_at() -> None:
    chain = STEP.enqueue()
    with chains.complete(chain.id) as current:
        current.continue_with(WAITS)
    dependent = PICKY.enqueue(blockers=[chain])
    assert statuses(dependent) == ["blocked"]


def test_a_chain_that_was_deleted_is_unknown() -> None:
    chain = STEP.enqueue()
    chains.delete(chain.id)
    with pytest.raises(ChainNotFound, match=str(chain.id)):
        WAITS.enqueue(blockers=[chain])
