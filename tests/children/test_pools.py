"""Pools create, reuse, replace and end their children as documented, and a child belongs to one caller at a time."""

import asyncio
import math
import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from django_jobchains.pools import (
    ChildCrashed,
    ChildSession,
    ChildStartFailed,
    Isolation,
    PoolClosed,
    PoolKeyConflict,
    PoolTimeout,
    ReusablePool,
    TransientPool,
)
from django_jobchains.testing.contracts import PoolContract
from django_jobchains.testing.contracts.pools import on_thread
from tests.children.conftest import FUNCTIONS, in_child, is_running, run, state_of
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("each_way_to_start")
both_pools = pytest.mark.parametrize("pool_class", [ReusablePool, TransientPool])
HANGS = f"{FUNCTIONS}:hang_in_set_up"


class TestReusablePool(PoolContract):
    def make(self):
        return ReusablePool(2, grace_seconds=0.5, strict=True)


class TestTransientPool(PoolContract):
    keeps_children = False

    def make(self):
        return TransientPool.of(Isolation("transient", max_workers=2, grace_seconds=0.5, strict=True))


@contextmanager
def waiting(pool, key="default", timeout=30):
    """An ``acquire`` that waits."""
    future = on_thread(lambda: pool.acquire(key, timeout))
    until(lambda: pool._changed._waiters)
    yield future


# Which child


def test_children_are_created_while_there_is_room_and_then_used_in_turns():
    with ReusablePool(2) as pool:
        pids = [in_child(pool, "pid") for _ in range(4)]
        assert pids == [pids[0], pids[1], pids[0], pids[1]]
        assert pids[0] != pids[1]
        assert pool.size == 2


def test_every_use_of_a_transient_pool_has_a_process_that_ends_with_what_it_has_started():
    pids = []
    for session in (ChildSession(TransientPool()), ChildSession()):
        with session as child:
            assert (run(child, "count"), child.level) == (1, "transient")
            pids += [child.pid, run(child, "start_grandchild")]
            assert all(map(is_running, pids[-2:]))
    assert len(set(pids)) == 4
    until(lambda: not any(map(is_running, pids)))


def test_a_child_that_is_being_created_counts():
    with ReusablePool(1, setup=HANGS) as pool:
        future = on_thread(pool.acquire)
        until(lambda: pool.is_full())
        assert (pool.size, pool.is_saturated()) == (0, True)
        with pytest.raises(PoolTimeout, match="No child for key 'default' within"):
            pool.acquire(timeout="10ms")
        pool.terminate()
        assert isinstance(future.exception(10), PoolClosed)


@both_pools
def test_a_creation_that_fails_or_takes_too_long_leaves_no_trace(pool_class):
    with pool_class(strict=True, setup=f"{FUNCTIONS}:fail_to_set_up") as pool:
        with pytest.raises(ChildStartFailed, match="LookupError: no model to load"):
            pool.acquire()
        assert (pool.size, pool.is_full(), pool.is_saturated()) == (0, False, False)
    with pool_class(setup=HANGS) as pool:
        with pytest.raises(PoolTimeout) as caught:
            pool.acquire(timeout=1)
        assert isinstance(caught.value, TimeoutError)
        assert (pool.size, pool.is_full()) == (0, False)


@pytest.mark.parametrize("timeout", [math.inf, timedelta(days=330_000)], ids=repr)
def test_acquire_may_wait_for_ever(timeout):
    with ReusablePool(1) as pool:
        first = pool.acquire()
        with waiting(pool, timeout=timeout) as second:
            pool.release(first)
            assert second.result(10).pid == first.pid


def test_acquire_waits_for_a_release_until_its_timeout():
    with ReusablePool(1) as pool:
        first = pool.acquire()
        with pytest.raises(PoolTimeout):
            pool.acquire(timeout=0.01)
        with waiting(pool) as second:
            pool.release(first)
            assert second.result(10).pid == first.pid


def test_an_idle_child_is_used_if_a_new_one_does_not_start_in_time():
    with ReusablePool(2) as pool:
        idle = pool.acquire()
        pool.release(idle)
        pool._launcher.isolation = Isolation("process", setup=HANGS)
        with ChildSession(pool, timeout=0.1) as child:
            assert child.pid == idle.pid
            with pytest.raises(PoolTimeout):
                pool.acquire(timeout=0.1)
        assert pool.size == 1
        assert not pool.is_full()


def test_the_longest_idle_child_of_another_key_is_replaced():
    with ReusablePool(2) as pool:
        oldest, newest = (pool.acquire(key) for key in ("a", "b"))
        for child in (oldest, newest):
            pool.release(child)
        with ChildSession(pool, key="c"):
            assert sorted(child.key for child in pool.children) == ["b", "c"]
        until(lambda: not is_running(oldest.pid))
        assert is_running(newest.pid)


def test_a_strict_pool_does_not_replace_children_of_another_key():
    with ReusablePool(1, strict=True) as pool:
        with ChildSession(pool, key="a") as child:
            pid = child.pid
        with pytest.raises(PoolKeyConflict, match="'b'"):
            pool.acquire("b")
        with ChildSession(pool, key="a") as child:
            assert child.pid == pid


def test_a_busy_child_of_another_key_is_waited_for():
    with ReusablePool(1) as pool:
        first = pool.acquire("a")
        with waiting(pool, "b") as second:
            assert run(first, "echo", 1) == 1
            pool.release(first)
            assert second.result(10).key == "b"
        assert pool.size == 1


def test_a_child_is_replaced_after_its_number_of_jobs_and_above_its_memory():
    with ReusablePool(1, max_jobs_per_worker=2) as pool:
        assert [in_child(pool, "count") for _ in range(3)] == [1, 2, 1]
    with ReusablePool(1, max_rss="200M") as pool:
        for size, children in ((1024, 1), (250 * 1024**2, 0)):
            in_child(pool, "evaluate", f"kept.append(bytearray(b'x' * {size}))")
            assert pool.size == children


def test_an_idle_child_ends_after_its_time():
    with ReusablePool(2, idle_ttl=0.05) as pool:
        pid = in_child(pool, "pid")
        until(lambda: not is_running(pid))
        assert pool.size == 0
        assert in_child(pool, "pid") != pid


def test_a_child_that_died_while_it_was_idle_is_not_handed_out():
    with ReusablePool(1) as pool:
        with ChildSession(pool) as child:
            pass
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: not child.is_alive)
        assert in_child(pool, "echo", 1) == 1
        assert pool.size == 1


def test_a_session_is_used_once_at_a_time():
    session = ChildSession()
    with session, pytest.raises(RuntimeError, match="in use"):
        session.__enter__()
    with session as child:
        assert child.is_alive


# Its end


def test_terminate_ends_a_waiting_acquire():
    pool = ReusablePool()
    pool.acquire()
    with waiting(pool) as future:
        pool.terminate()
        assert isinstance(future.exception(10), PoolClosed)


@both_pools
def test_terminate_ends_a_child_whose_creation_finishes_afterwards(pool_class, monkeypatch):
    pool = pool_class()
    launch = pool._launcher.launch
    created = []

    def finish_late(*args):
        created.append(launch(*args))
        pool.terminate()
        return created[0]

    monkeypatch.setattr(pool._launcher, "launch", finish_late)
    with pytest.raises(PoolClosed):
        pool.acquire()
    until(lambda: not is_running(created[0].pid))


# One caller at a time


@both_pools
def test_a_wait_that_begins_after_the_release_raises(pool_class):
    with pool_class() as pool:
        child = pool.acquire()
        call = child.start(f"{FUNCTIONS}:hang")
        pool.release(child)
        with pytest.raises(ChildCrashed):
            call.wait(30)


@pytest.mark.parametrize("reason", ["another key", "a release", "its time"])
def test_a_process_counts_until_it_has_ended(reason):
    """A stopped process does not end before it is killed."""
    with ReusablePool(1, grace_seconds=0.1) as pool:
        child = pool.acquire("a")
        os.kill(child.pid, signal.SIGSTOP)
        if reason == "its time":
            pool.isolation = replace(pool.isolation, idle_ttl=0.001)
        pool.release(child, broken=reason == "a release")
        pool.acquire("b")
        assert not is_running(child.pid)


@both_pools
def test_a_pid_is_not_used_again_while_the_child_is_held(pool_class):
    """Signals are sent to the pid."""
    with pool_class() as pool:
        child = pool.acquire()
        with pytest.raises(ChildCrashed):
            run(child, "die")
        assert state_of(child.pid) == "Z"
        pool.release(child)
        until(lambda: state_of(child.pid) is None)


class HeldPoll:
    """The poll of a thread that waits for a child process. It returns when it is let go."""

    def __init__(self, poll):
        self._poll = poll
        self.has_begun, self.is_let_go = threading.Event(), threading.Event()

    def modify(self, *args):
        self._poll.modify(*args)

    def poll(self, timeout):
        self.has_begun.set()
        happened = self._poll.poll(timeout)
        assert self.is_let_go.wait(30)
        return happened


@both_pools
def test_the_thread_that_waits_closes_the_descriptors(pool_class):
    with pool_class() as pool:
        child = pool.acquire()
        poll = child.peer._poll = HeldPoll(child.peer._poll)
        waiting = on_thread(child.start(f"{FUNCTIONS}:hang").wait)
        assert poll.has_begun.wait(30)
        pool.release(child)
        poll.is_let_go.set()
        assert isinstance(waiting.exception(30), ChildCrashed)
        until(lambda: child.peer._socket.fileno() == -1)


@both_pools
def test_the_task_of_a_cancelled_call_ends_after_the_release(pool_class):
    async def main():
        with pool_class(grace_seconds=0.2) as pool:
            task = asyncio.create_task(pool.arun(f"{FUNCTIONS}:hang_without_sigterm"))
            await asyncio.to_thread(until, lambda: any(child.is_busy for child in pool.children))
            (child,) = pool.children
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert child.is_released
            assert not is_running(child.pid)

    asyncio.run(main())
