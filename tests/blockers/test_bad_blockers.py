"""Invalid blockers raise a clear error, and nothing is created."""

from uuid import uuid4

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.exceptions import ChainNotFound, InvalidBlockers
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.blockers.chains import STEP, WAITS, complete_by_hand, statuses
from tests.blockers.consistency import assert_consistent
from tests.support.attempts import committed
from tests.support.jobs import tables

pytestmark = committed

PICKY = JobType("blockers.picky", blockers=[STEP, "blockers.other"])
ALONE = JobType("blockers.alone", blockers=[])
SLOTS = JobType("blockers.slots", blockers=(STEP, "blockers.waits"))
UNKNOWN, OWN = uuid4(), uuid4()

#: A type, the blockers of its job, and the error.
BAD = {
    "twice": (STEP, lambda chain: [chain, chain.id], InvalidBlockers, "twice"),
    "unknown": (STEP, lambda chain: [chain, UNKNOWN], ChainNotFound, str(UNKNOWN)),
    "a type not accepted": (PICKY, lambda chain: [WAITS.enqueue()], InvalidBlockers, "'blockers.waits'"),
    "fewer than required": (SLOTS, lambda chain: [chain], InvalidBlockers, "requires 2 blockers"),
    "none, although required": (SLOTS, lambda chain: [], InvalidBlockers, "requires 2 blockers"),
    "more than required": (
        SLOTS,
        lambda chain: [chain, WAITS.enqueue(), STEP.enqueue()],
        InvalidBlockers,
        "requires 2 blockers",
    ),
    "in another order than declared": (
        SLOTS,
        lambda chain: [WAITS.enqueue(), chain],
        InvalidBlockers,
        "requires a chain of 'blockers.step' as blocker 1, not of 'blockers.waits'",
    ),
    "any, where none is accepted": (ALONE, lambda chain: [chain], InvalidBlockers, "accepts blockers of none"),
}
bad = pytest.mark.parametrize(("job_type", "blockers", "error", "text"), BAD.values(), ids=BAD)
#: One error of the arguments, one of the database, and one of the declared types.
SOME = ("twice", "unknown", "fewer than required")
some_bad = pytest.mark.parametrize(("job_type", "blockers", "error", "text"), [BAD[name] for name in SOME], ids=SOME)


@bad
def test_enqueueing_with_bad_blockers_creates_nothing_and_the_transaction_continues(job_type, blockers, error, text):
    given = blockers(STEP.enqueue())
    before = tables()
    with transaction.atomic():
        with pytest.raises(error, match=text):
            job_type.enqueue(blockers=given)
        with pytest.raises(error, match=text):
            chains.enqueue_many([STEP.item(), job_type.item(blockers=given), STEP.item()])
        assert tables() == before
        after = STEP.enqueue()
    assert statuses(after) == ["pending"]


@some_bad
def test_bad_blockers_caught_in_the_block_do_not_change_the_job(store, job_type, blockers, error, text):
    given = blockers(STEP.enqueue())
    chain = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[chain])
    before = tables()
    with chains.current_job(chain.id) as current:
        with pytest.raises(error, match=text):
            current.continue_with(job_type, blockers=given)
        assert current.job.status == "pending"
    assert tables() == before
    complete_by_hand(chain)
    assert statuses(dependent) == ["pending"]
    assert_consistent(store)


@some_bad
@pytest.mark.parametrize("place", ["returned", "complete"])
def test_handler_that_continues_with_bad_blockers_does_not_complete(
    processors, work, store, place, job_type, blockers, error, text
):
    given = blockers(STEP.enqueue())

    @processors.register("first", max_attempts=1)
    def first(job):
        if place == "returned":
            return job.continue_with(job_type, blockers=given)
        with job.complete():
            return job.continue_with(job_type, blockers=given)

    chain = first.enqueue()
    good = processors.register("good")(lambda job: None)
    others = [good.enqueue() for _ in range(3)]
    work(slots=4)
    job = Job.objects.get(chain_id=chain.id)
    assert (job.status, job.output) == ("failed", None)
    assert text in str(job.last_error)
    assert statuses(*others) == ["completed"] * 3
    assert_consistent(store)


def test_job_cannot_wait_for_itself():
    with pytest.raises(InvalidBlockers, match="itself"):
        STEP.enqueue(id=OWN, blockers=[OWN])
    chain = STEP.enqueue()
    before = tables()
    with pytest.raises(InvalidBlockers, match="itself"), chains.current_job(chain.id) as current:
        current.continue_with(STEP, blockers=[chain])
    assert tables() == before


@pytest.mark.parametrize(
    "given",
    [lambda chain: chain, lambda chain: chain.id, lambda chain: iter([chain]), lambda chain: [chain.current_job]],
    ids=["a chain", "an id", "a generator", "a later job"],
)
def test_blockers_are_one_or_several_chains_ids_or_jobs(given):
    chain = STEP.enqueue()
    with chains.current_job(chain) as current:
        current.continue_with(STEP)
    dependent = WAITS.enqueue(blockers=given(chain.refresh()))
    assert [link.blocker_id for link in dependent.current_job.blocker_links.all()] == [chain.id]


def test_type_of_the_chain_counts_instead_of_that_of_its_current_job(store):
    chain = STEP.enqueue()
    with chains.current_job(chain.id) as current:
        current.continue_with(WAITS)
    dependent = PICKY.enqueue(blockers=[chain])
    assert statuses(dependent) == ["blocked"]
    with pytest.raises(ChainNotFound):  # the id of a continuation is not a chain
        WAITS.enqueue(blockers=[chain.refresh().current_job.id])
    required = [chain, WAITS.enqueue()]
    assert SLOTS.enqueue(blockers=required).current_job.blockers == required
    assert_consistent(store)
