"""Attempts that are sent to a child process together, while the child is too busy to begin any of them."""

import os
import signal

import pytest

from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.isolation import Isolation
from django_jobchains.worker.child_slots import ChildSlots
from django_jobchains.worker.isolated.isolated_attempt import ChildRun, RunEnd
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.slots import Slots
from tests.support.workers import context_for


class SentAttempt:
    """An attempt, of which only the request matters: no child begins it."""

    jobs = ()

    def __init__(self):
        self.signal = AbortSignal()

    def request(self, *, is_first):
        return None

    def expect_begin(self):
        pass

    def forward_aborts(self, call):
        pass


@pytest.fixture
def pool():
    """A pool with one child, which the system does not run for now."""
    pool = IsolationPool(Isolation("process", strict=True), 1, "w")
    child = pool.acquire()
    pool.release(child)
    os.kill(child.pid, signal.SIGSTOP)
    yield pool
    os.kill(child.pid, signal.SIGCONT)
    pool.terminate()


def test_they_are_put_back_although_the_first_has_not_begun_either(pool):
    attempts, ends = [SentAttempt(), SentAttempt()], []
    assert list(ChildRun(attempts, pool, ends.append).run()) == []
    assert [(list(end.left), end.ended) for end in ends] == [(attempts, 0)]


def test_they_are_then_sent_one_by_one_because_a_single_one_is_waited_for():
    slots = ChildSlots(Isolation("process", max_workers=1), Slots(context_for(slots=1), None))
    slots.backlog.put([SentAttempt(), SentAttempt()])
    slots._count(RunEnd((), 100, 0.1, 0.1))
    run = slots._next_run()
    assert len(run._attempts) == 2
    slots.backlog.put(run._attempts)
    slots._count(RunEnd((), 0, 0.05, 0.0))
    assert len(slots._next_run()._attempts) == 1
