"""Eight threads do everything that can be done to a few chains that wait for each other, as fast as they can."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError

from django_jobchains import chains
from django_jobchains.exceptions import (
    ChainNotFound,
    ChainReferenced,
    InvalidBlockers,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
)
from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Effects, Store
from tests.blockers.actors import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE
from tests.blockers.kinds import FAILS, RUNS, STEP, TYPES, WAITS, goes_on
from tests.blockers.oracle import assert_sound, problems
from tests.blockers.threads import COUNT, Crew
from tests.store.connections import committing, is_conflict
from tests.store.jobs import database_now, failed_try, finished

pytestmark = [committing, pytest.mark.postgresql]

DOCUMENTED = (
    ChainNotFound,
    ChainReferenced,
    InvalidBlockers,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
)
FEWEST_CHAINS, MOST_CHAINS = 8, 24
AT_ONCE = Backoff(0, 1, 0, 0)


def test_a_short_storm_leaves_the_tables_sound(store: Store) -> None:
    storm = Storm(store, seconds=2)
    storm.rage()
    assert storm.errors == []
    assert storm.done.total() > COUNT
    settle(store)


@pytest.mark.slow
@pytest.mark.parametrize("level", [REPEATABLE_READ, SERIALIZABLE])
def test_a_storm_at_a_higher_level_has_more_conflicts_and_leaves_the_tables_sound(store: Store, level: str) -> None:
    """Some moves are given up after their last try; then they have changed nothing."""
    storm = Storm(store, seconds=4, level=level, gives_up=True)
    storm.rage()
    assert storm.errors == []
    assert storm.conflicts > 0
    settle(store)


@pytest.mark.slow
def test_a_long_storm_meets_deadlocks_and_leaves_the_tables_sound(store: Store) -> None:
    storm = Storm(store, seconds=10)
    storm.rage()
    assert storm.errors == []
    assert set(storm.done) == {move.__name__ for move in storm.moves}
    assert storm.conflicts > 0
    settle(store)


class Storm:
    def __init__(self, store: Store, seconds: float, *, level: str = READ_COMMITTED, gives_up: bool = False) -> None:
        self.store = store
        self.level = level
        self.gives_up = gives_up
        self.seconds = seconds
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self.conflicts = 0
        self.moves = [
            self.enqueue,
            self.work,
            self.complete_by_hand,
            self.cancel,
            self.retry,
            self.delete,
            self.reap,
            self.run_now,
            self.sweep,
        ]
        self.weights = [4, 8, 3, 1, 3, 1, 2, 1, 1]

    def rage(self) -> None:
        crew = Crew(self._run, self.level).start()
        crew.join()
        self.conflicts = crew.conflicts

    def _run(self, number: int) -> None:
        rng = random.Random(number)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            [move] = rng.choices(self.moves, self.weights)
            try:
                known = list(Job.objects.filter(chain_index=0).values_list("id", flat=True))
                if len(known) < FEWEST_CHAINS:
                    move = self.enqueue
                elif len(known) > MOST_CHAINS:
                    move = self.delete
                move(rng, known)
                self.done[move.__name__] += 1
            except DOCUMENTED as error:
                self.refused[type(error).__name__] += 1
            except Exception as error:
                if self.gives_up and is_conflict(error):
                    self.refused["conflict"] += 1
                    continue
                self.errors.append(f"{move.__name__}: {error}")

    def enqueue(self, rng: random.Random, known: list[UUID]) -> None:
        kind = rng.choice((STEP, WAITS, FAILS, RUNS))
        chains.enqueue_many([kind.item(blockers=some(rng, known)) for _ in range(rng.randint(1, 3))])

    def work(self, rng: random.Random, known: list[UUID]) -> None:
        """Claims, and ends the attempts in any way, or not at all."""
        jobs = self.store.claim("worker", rng.randint(1, 4), dict.fromkeys(TYPES, 0.2))
        ends = {job: rng.choices(("finish", "go on", "fail", "again", "die"), (4, 4, 2, 1, 1))[0] for job in jobs}
        self.store.finish(
            [self._finished(rng, known, job, ends[job]) for job in jobs if ends[job] in ("finish", "go on")]
        )
        self.store.fail([failed_try(job) for job in jobs if ends[job] == "fail"])
        self.store.reschedule([failed_try(job) for job in jobs if ends[job] == "again"])

    def _finished(self, rng: random.Random, known: list[UUID], job: ClaimedJob, end: str) -> Any:
        return finished(job) if end == "finish" else goes_on(job, blockers=tuple(some(rng, known)))

    def complete_by_hand(self, rng: random.Random, known: list[UUID]) -> None:
        """The transaction is the caller's, who tries it again."""

        def complete() -> None:
            with chains.complete(chain_id) as current:
                current.continue_with(WAITS, blockers=blockers) if blockers else current.finish()

        chain_id, blockers = rng.choice(known), some(rng, known)
        again(complete)

    def cancel(self, rng: random.Random, known: list[UUID]) -> None:
        chains.cancel(rng.sample(known, 3))

    def retry(self, rng: random.Random, known: list[UUID]) -> None:
        ended = list(Job.objects.with_status("failed", "cancelled").values_list("id", flat=True))
        chains.retry(rng.sample(ended, min(5, len(ended))))

    def delete(self, rng: random.Random, known: list[UUID]) -> None:
        """Now and then any, mostly chains that nobody waits for."""
        if rng.random() < 0.7:
            known = list(Job.objects.filter(chain_index=0, dependent_links=None).values_list("id", flat=True))
        chains.delete(rng.sample(known, min(len(known), rng.randint(1, 4))), cascade=rng.random() < 0.5)

    def reap(self, rng: random.Random, known: list[UUID]) -> None:
        self.store.reap(10, AT_ONCE, 3)

    def run_now(self, rng: random.Random, known: list[UUID]) -> None:
        pending = list(Job.objects.with_status("pending").values_list("id", flat=True))
        chains.run_now(rng.sample(pending, min(3, len(pending))))

    def sweep(self, rng: random.Random, known: list[UUID]) -> None:
        freed, _ = self.store.sweep(1_000, None, Effects())
        assert freed == [], "a job was stuck"


def some(rng: random.Random, known: list[UUID]) -> list[UUID]:
    return rng.sample(known, min(len(known), rng.choice((0, 1, 1, 2, 3))))


def again(call: Callable[[], None]) -> None:
    while True:
        try:
            return call()
        except OperationalError as error:
            if not is_conflict(error):
                raise


def settle(store: Store) -> None:
    """Ends what is left: then nothing runs, and who is blocked waits for a chain that did not complete."""
    assert_sound(store)
    Job.objects.with_status("running").update(leased_until=database_now())
    store.reap(1_000, AT_ONCE, 1_000)
    assert not Job.objects.with_status("running").exists()
    assert_sound(store)
    while pending := list(Job.objects.with_status("pending").values_list("id", flat=True)):
        chains.run_now(pending)
        jobs = store.claim("worker", 1_000, dict.fromkeys(TYPES, 60.0))
        assert len(jobs) == len(pending)
        store.finish([finished(job) for job in jobs])
    assert problems() == []
