"""Eight threads make random changes to a few chains that wait for each other, as fast as possible."""

import random
import time
from collections import Counter

import pytest
from django.db import OperationalError

from django_jobchains import chains
from django_jobchains.declare.policies import Backoff
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
from django_jobchains.store.rows import Effects
from tests.blockers.chains import FAILS, RUNS, STEP, TYPES, WAITS, continued
from tests.blockers.consistency import assert_consistent, problems
from tests.blockers.thread_group import COUNT, ThreadGroup
from tests.support.connections import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE, committing, is_conflict
from tests.support.jobs import database_now, failed_try, finished

pytestmark = [committing, pytest.mark.postgresql]

DOCUMENTED_ERRORS = (
    ChainNotFound,
    ChainReferenced,
    InvalidBlockers,
    JobAlreadyCompleted,
    JobNotCompletable,
    JobNotFound,
    JobNotRunnable,
)
MIN_CHAINS, MAX_CHAINS = 8, 24
MAX_GIVEN_UP = 3
NO_BACKOFF = Backoff(0, 1, 0, 0)


def test_random_changes_leave_the_tables_consistent(store):
    changes = RandomChanges(store, seconds=2)
    changes.run()
    assert changes.errors == []
    assert changes.done.total() > COUNT
    complete_all(store)


@pytest.mark.slow
@pytest.mark.parametrize("level", [REPEATABLE_READ, SERIALIZABLE])
def test_random_changes_at_a_higher_isolation_level_leave_the_tables_consistent(store, level):
    """Some changes still conflict at the last try, and then have no effect."""
    changes = RandomChanges(store, seconds=4, level=level, gives_up=True)
    changes.run()
    assert changes.errors == []
    assert changes.conflicts > 0
    complete_all(store)


@pytest.mark.slow
def test_random_changes_with_deadlocks_leave_the_tables_consistent(store):
    """On a busy machine, a change may be the victim of a deadlock at each of its tries."""
    changes = RandomChanges(store, seconds=10, gives_up=True)
    changes.run()
    assert changes.errors == []
    assert changes.refused["conflict"] <= MAX_GIVEN_UP
    assert set(changes.done) == {move.__name__ for move in changes.moves}
    assert changes.conflicts > 0
    complete_all(store)


class RandomChanges:
    def __init__(self, store, seconds, *, level=READ_COMMITTED, gives_up=False):
        self.store = store
        self.level = level
        self.gives_up = gives_up
        self.seconds = seconds
        self.done = Counter()
        self.refused = Counter()
        self.errors = []
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

    def run(self):
        threads = ThreadGroup(self._run, self.level).start()
        threads.join()
        self.conflicts = threads.conflicts

    def _run(self, number):
        rng = random.Random(number)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            [move] = rng.choices(self.moves, self.weights)
            try:
                known = list(Job.objects.filter(chain_index=0).values_list("id", flat=True))
                if len(known) < MIN_CHAINS:
                    move = self.enqueue
                elif len(known) > MAX_CHAINS:
                    move = self.delete
                move(rng, known)
                self.done[move.__name__] += 1
            except DOCUMENTED_ERRORS as error:
                self.refused[type(error).__name__] += 1
            except Exception as error:
                if self.gives_up and is_conflict(error):
                    self.refused["conflict"] += 1
                    continue
                self.errors.append(f"{move.__name__}: {error}")

    def enqueue(self, rng, known):
        kind = rng.choice((STEP, WAITS, FAILS, RUNS))
        chains.enqueue_many([kind.item(blockers=some(rng, known)) for _ in range(rng.randint(1, 3))])

    def work(self, rng, known):
        """Claim jobs, and end their attempts in various ways, or not at all."""
        jobs = self.store.jobs.claim("worker", rng.randint(1, 4), dict.fromkeys(TYPES, 0.2))
        ends = {job: rng.choices(("finish", "continue", "fail", "again", "die"), (4, 4, 2, 1, 1))[0] for job in jobs}
        self.store.attempts.finish(
            [self._finished(rng, known, job, ends[job]) for job in jobs if ends[job] in ("finish", "continue")]
        )
        self.store.attempts.fail([failed_try(job) for job in jobs if ends[job] == "fail"])
        self.store.attempts.reschedule([failed_try(job) for job in jobs if ends[job] == "again"])

    def _finished(self, rng, known, job, end):
        return finished(job) if end == "finish" else continued(job, blockers=tuple(some(rng, known)))

    def complete_by_hand(self, rng, known):
        """Complete a chain. The transaction belongs to the caller, so the caller retries it."""

        def complete():
            with chains.current_job(chain_id) as current:
                current.continue_with(WAITS, blockers=blockers) if blockers else current.finish()

        chain_id, blockers = rng.choice(known), some(rng, known)
        retry_conflicts(complete)

    def cancel(self, rng, known):
        chains.cancel(rng.sample(known, 3))

    def retry(self, rng, known):
        ended = list(Job.objects.with_status("failed", "cancelled").values_list("id", flat=True))
        chains.retry(rng.sample(ended, min(5, len(ended))))

    def delete(self, rng, known):
        """Delete chains, mostly ones that no other chain waits for."""
        if rng.random() < 0.7:
            known = list(Job.objects.filter(chain_index=0, dependent_links=None).values_list("id", flat=True))
        chains.delete(rng.sample(known, min(len(known), rng.randint(1, 4))), cascade=rng.random() < 0.5)

    def reap(self, rng, known):
        self.store.leases.reap(10, NO_BACKOFF, 3)

    def run_now(self, rng, known):
        pending = list(Job.objects.with_status("pending").values_list("id", flat=True))
        chains.run_now(rng.sample(pending, min(3, len(pending))))

    def sweep(self, rng, known):
        freed, _ = self.store.blockers.sweep(1_000, None, Effects())
        assert freed == [], "The sweeper found a stuck job."


def some(rng, known):
    return rng.sample(known, min(len(known), rng.choice((0, 1, 1, 2, 3))))


def retry_conflicts(call):
    while True:
        try:
            return call()
        except OperationalError as error:
            if not is_conflict(error):
                raise


def complete_all(store):
    """Complete all jobs that can run, and check that those still blocked wait for a chain that did not complete."""
    assert_consistent(store)
    Job.objects.with_status("running").update(leased_until=database_now())
    store.leases.reap(1_000, NO_BACKOFF, 1_000)
    assert not Job.objects.with_status("running").exists()
    assert_consistent(store)
    while pending := list(Job.objects.with_status("pending").values_list("id", flat=True)):
        chains.run_now(pending)
        jobs = store.jobs.claim("worker", 1_000, dict.fromkeys(TYPES, 60.0))
        assert len(jobs) == len(pending)
        store.attempts.finish([finished(job) for job in jobs])
    assert problems() == []
