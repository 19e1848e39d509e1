"""Eight threads complete hundreds of blockers of one job. Only the last blocker frees the job."""

import random
from queue import Empty, SimpleQueue

import pytest

from tests.blockers.consistency import assert_consistent, started_early, swept
from tests.blockers.thread_group import ThreadGroup
from tests.support.connections import committing
from tests.support.jobs import MAIL, SHIP, claim, create, finished, stored

pytestmark = committing

MAX_BATCH_SIZE = 20
#: The blockers of each round. The race happens at the end of a round, so most rounds are short. The long ones give the
#: test more time to check the dependent.
ROUNDS = [1_000] * 3 + [150] * 47


@pytest.mark.parametrize("round_", range(2))
def test_one_hundred_blockers_completed_by_eight_threads_free_their_dependent(store, round_):
    storm(store, 100, random.Random(round_))
    assert_consistent(store)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(600)
def test_fifty_rounds_of_hundreds_of_blockers_leave_no_job_stuck_and_start_none_early(store):
    checks = sum(storm(store, count, random.Random(round_)) for round_, count in enumerate(ROUNDS))
    assert checks >= len(ROUNDS)


def storm(store, count, rng):
    """Run one round, and return how often the dependent was checked during it."""
    create(store, count)
    jobs = claim(store, types=[SHIP])
    assert len(jobs) == count
    [dependent] = create(store, 1, MAIL, blockers=tuple(job.chain_id for job in jobs))
    batches = in_batches(jobs, rng)
    threads = ThreadGroup(lambda number: complete(store, batches)).start()
    checks = 0
    while threads.is_busy:
        assert started_early(dependent) == []
        checks += 1
    threads.join()
    assert stored(dependent).status == "pending"
    assert swept(store) == []
    assert [job.id for job in claim(store, types=[MAIL])] == [dependent]
    return checks


def in_batches(jobs, rng):
    """Return the jobs in batches of random sizes and in random order."""
    rng.shuffle(jobs)
    batches = SimpleQueue()
    while jobs:
        size = rng.randint(1, MAX_BATCH_SIZE)
        batches.put(jobs[:size])
        jobs = jobs[size:]
    return batches


def complete(store, batches):
    while True:
        try:
            batch = batches.get_nowait()
        except Empty:
            return
        assert store.attempts.finish([finished(job) for job in batch]) == {job.key for job in batch}
