"""Eight threads complete a thousand blockers of one job: it is freed by the last of them, and not before."""

import random
from queue import Empty, SimpleQueue

import pytest

from django_jobchains.store import ClaimedJob, Store
from tests.blockers.oracle import assert_sound, started_early, swept
from tests.blockers.threads import Crew
from tests.store.connections import committing
from tests.store.jobs import MAIL, SHIP, claim, create, finished, stored

pytestmark = committing

MOST_IN_A_BATCH = 20


@pytest.mark.parametrize("round_", range(2))
def test_a_hundred_blockers_that_eight_threads_complete_free_their_job_at_last(store: Store, round_: int) -> None:
    assert storm(store, 100, random.Random(round_)) > 0
    assert_sound(store)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(600)
def test_a_thousand_blockers_in_each_of_fifty_rounds_leave_no_job_stuck_and_start_none_early(store: Store) -> None:
    looks = sum(storm(store, 1_000, random.Random(round_)) for round_ in range(50))
    assert looks >= 50


def storm(store: Store, count: int, rng: random.Random) -> int:
    """One round; how often it was looked at while it raged."""
    create(store, count)
    jobs = claim(store, types=[SHIP])
    assert len(jobs) == count
    [dependent] = create(store, 1, MAIL, blockers=tuple(job.chain_id for job in jobs))
    batches = in_batches(jobs, rng)
    crew = Crew(lambda number: complete(store, batches)).start()
    looks = 0
    while crew.is_busy:
        assert started_early(dependent) == []
        looks += 1
    crew.join()
    assert stored(dependent).status == "pending"
    assert swept(store) == []
    assert [job.id for job in claim(store, types=[MAIL])] == [dependent]
    return looks


def in_batches(jobs: list[ClaimedJob], rng: random.Random) -> "SimpleQueue[list[ClaimedJob]]":
    """Of mixed sizes, in any order."""
    rng.shuffle(jobs)
    batches: SimpleQueue[list[ClaimedJob]] = SimpleQueue()
    while jobs:
        size = rng.randint(1, MOST_IN_A_BATCH)
        batches.put(jobs[:size])
        jobs = jobs[size:]
    return batches


def complete(store: Store, batches: "SimpleQueue[list[ClaimedJob]]") -> None:
    while True:
        try:
            batch = batches.get_nowait()
        except Empty:
            return
        assert store.finish([finished(job) for job in batch]) == {job.key for job in batch}
