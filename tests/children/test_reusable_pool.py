"""A reusable pool creates, reuses, replaces and ends its children as documented."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from django_jobchains.pools import (
    ChildSession,
    ChildStartFailed,
    Isolation,
    PoolClosed,
    PooledChild,
    PoolKeyConflict,
    PoolTimeout,
    ReusablePool,
)
from django_jobchains.testing.contracts.concurrency import until
from django_jobchains.testing.contracts.pools import on_thread
from tests.children.conftest import FUNCTIONS, is_running

pytestmark = pytest.mark.usefixtures("each_way_to_start")


@contextmanager
def waiting(pool: ReusablePool, key: str = "default") -> Iterator["Future[PooledChild]"]:
    """An ``acquire`` that waits."""
    future = on_thread(lambda: pool.acquire(key, timeout=30))
    until(lambda: pool.waiting == 1)
    yield future


def test_children_are_created_while_there_is_room_and_then_used_in_turns() -> None:
    with ReusablePool(2) as pool:
        pids = []
        for _ in range(4):
            with ChildSession(pool) as child:
                pids.append(child.pid)
        assert pids == [pids[0], pids[1], pids[0], pids[1]]
        assert pids[0] != pids[1]
        assert pool.size == 2


def test_a_child_that_is_being_created_counts() -> None:
    with ReusablePool(1, setup=f"{FUNCTIONS}:hang_in_set_up") as pool:
        future = on_thread(pool.acquire)
        until(lambda: pool.is_full())
        assert (pool.size, pool.is_saturated()) == (0, True)
        with pytest.raises(PoolTimeout, match="No child for key 'default' within"):
            pool.acquire(timeout=0.01)
        pool.terminate()
        assert isinstance(future.exception(10), PoolClosed)


def test_a_failed_creation_leaves_no_trace() -> None:
    with ReusablePool(1, strict=True, setup=f"{FUNCTIONS}:fail_to_set_up") as pool:
        for _ in range(2):
            with pytest.raises(ChildStartFailed, match="LookupError: no model to load"):
                pool.acquire()
        assert (pool.size, pool.is_full(), pool.is_saturated()) == (0, False, False)


def test_a_creation_that_takes_too_long_leaves_no_trace() -> None:
    with ReusablePool(1, setup=f"{FUNCTIONS}:hang_in_set_up") as pool:
        with pytest.raises(PoolTimeout):
            pool.acquire(timeout=1)
        assert (pool.size, pool.is_full()) == (0, False)


def test_acquire_waits_for_a_release() -> None:
    with ReusablePool(1) as pool:
        first = pool.acquire()
        with waiting(pool) as second:
            pool.release(first)
            assert second.result(10).pid == first.pid


def test_acquire_gives_up_at_its_timeout() -> None:
    with ReusablePool(1) as pool, ChildSession(pool):
        with pytest.raises(PoolTimeout) as caught:
            pool.acquire(timeout=0.01)
        assert isinstance(caught.value, TimeoutError)


def test_an_idle_child_is_used_if_a_new_one_does_not_start_in_time() -> None:
    with ReusablePool(2) as pool:
        idle = pool.acquire()
        pool.release(idle)
        pool._launcher.isolation = Isolation("process", setup=f"{FUNCTIONS}:hang_in_set_up")
        with ChildSession(pool, timeout=0.1) as child:
            assert child.pid == idle.pid
            with pytest.raises(PoolTimeout):
                pool.acquire(timeout=0.1)
        assert pool.size == 1
        assert not pool.is_full()


def test_keys_are_never_mixed_in_a_process() -> None:
    with ReusablePool(2) as pool:
        for key in ("a", "b", "b", "a"):
            with ChildSession(pool, key=key) as child:
                assert child.key == key
        assert sorted(child.key for child in pool.children) == ["a", "b"]


def test_the_longest_idle_child_of_another_key_is_replaced() -> None:
    with ReusablePool(2) as pool:
        oldest, newest = (pool.acquire(key) for key in ("a", "b"))
        for child in (oldest, newest):
            pool.release(child)
        with ChildSession(pool, key="c"):
            assert sorted(child.key for child in pool.children) == ["b", "c"]
        until(lambda: not is_running(oldest.pid))
        assert is_running(newest.pid)


def test_a_strict_pool_does_not_replace_children_of_another_key() -> None:
    with ReusablePool(1, strict=True) as pool:
        with ChildSession(pool, key="a") as child:
            pid = child.pid
        with pytest.raises(PoolKeyConflict, match="'b'"):
            pool.acquire("b")
        with ChildSession(pool, key="a") as child:
            assert child.pid == pid


def test_a_busy_child_of_another_key_is_waited_for() -> None:
    with ReusablePool(1) as pool:
        first = pool.acquire("a")
        with waiting(pool, "b") as second:
            assert first.run(f"{FUNCTIONS}:echo", 1) == 1
            pool.release(first)
            assert second.result(10).key == "b"
        assert pool.size == 1


def test_a_child_is_replaced_after_its_number_of_jobs() -> None:
    with ReusablePool(1, max_jobs_per_worker=2) as pool:
        counts = []
        for _ in range(3):
            with ChildSession(pool) as child:
                counts.append(child.run(f"{FUNCTIONS}:count"))
        assert counts == [1, 2, 1]


def test_a_child_is_replaced_above_its_memory() -> None:
    with ReusablePool(1, max_rss="200M") as pool:
        with ChildSession(pool) as child:
            child.run(f"{FUNCTIONS}:leak", 1024)
        assert pool.size == 1
        with ChildSession(pool) as child:
            child.run(f"{FUNCTIONS}:leak", 250 * 1024**2)
        assert pool.size == 0


def test_an_idle_child_ends_after_its_time() -> None:
    with ReusablePool(2, idle_ttl=0.05) as pool:
        with ChildSession(pool) as child:
            pid = child.pid
        until(lambda: not is_running(pid))
        assert pool.size == 0
        with ChildSession(pool) as child:
            assert child.pid != pid


def test_a_child_that_died_while_it_was_idle_is_not_handed_out() -> None:
    with ReusablePool(1) as pool:
        with ChildSession(pool) as child:
            pass
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: not child.is_alive)
        with ChildSession(pool) as child:
            assert child.run(f"{FUNCTIONS}:echo", 1) == 1
        assert pool.size == 1


def test_a_session_is_used_once_at_a_time() -> None:
    with ReusablePool(2) as pool:
        session = ChildSession(pool)
        with session, pytest.raises(RuntimeError, match="in use"):
            session.__enter__()
        with session as child:
            assert child.is_alive


class TestTerminate:
    def test_a_waiting_acquire_raises(self) -> None:
        pool = ReusablePool()
        pool.acquire()
        with waiting(pool) as future:
            pool.terminate()
            assert isinstance(future.exception(10), PoolClosed)

    def test_a_child_whose_creation_finishes_afterwards_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pool = ReusablePool()
        launch = pool._launcher.launch
        created: list[PooledChild] = []

        def finish_late(*args: Any) -> PooledChild:
            created.append(launch(*args))
            pool.terminate()
            return created[0]

        monkeypatch.setattr(pool._launcher, "launch", finish_late)
        with pytest.raises(PoolClosed):
            pool.acquire()
        until(lambda: not is_running(created[0].pid))
