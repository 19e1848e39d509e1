"""A child belongs to one caller until its release, and only that caller can release it."""

import asyncio
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from django_jobchains.pools import ChildCrashed, ReusablePool, TransientPool
from django_jobchains.testing.contracts.pools import on_thread
from tests.children.conftest import FUNCTIONS, is_running
from tests.support.waiting import until

both_pools = pytest.mark.parametrize("pool_class", [ReusablePool, TransientPool])


@both_pools
def test_a_wait_that_begins_after_the_release_raises(pool_class: Any) -> None:
    with pool_class() as pool:
        child = pool.acquire()
        call = child.start(f"{FUNCTIONS}:hang")
        pool.release(child)
        with pytest.raises(ChildCrashed):
            call.wait(30)


def test_a_process_counts_until_it_has_ended() -> None:
    """A stopped process does not end before it is killed."""
    with ReusablePool(1, grace_seconds=0.1) as pool:
        for reason in ("another key", "a release", "its time"):
            child = pool.acquire("a")
            os.kill(child.pid, signal.SIGSTOP)
            if reason == "a release":
                pool.release(child, broken=True)
            elif reason == "its time":
                pool.isolation = replace(pool.isolation, idle_ttl=0.001)
            pool.release(child)
            other = pool.acquire("b")
            assert not is_running(child.pid)
            pool.isolation = replace(pool.isolation, idle_ttl=None)
            pool.release(other, broken=True)


@both_pools
def test_a_pid_is_not_used_again_while_the_child_is_held(pool_class: Any) -> None:
    """Signals are sent to the pid."""
    with pool_class() as pool:
        child = pool.acquire()
        with pytest.raises(ChildCrashed):
            child.run(f"{FUNCTIONS}:kill_itself")
        assert state_of(child.pid) == "Z"
        pool.release(child)
        until(lambda: state_of(child.pid) is None)


def state_of(pid: int) -> str | None:
    """Return the state of a process, such as "Z" if it has ended and its parent has not collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


class HeldPoll:
    """The poll of a thread that waits for a child process. It returns when it is let go."""

    def __init__(self, poll: Any) -> None:
        self._poll = poll
        self.has_begun, self.is_let_go = threading.Event(), threading.Event()

    def modify(self, *args: Any) -> None:
        self._poll.modify(*args)

    def poll(self, timeout: float | None) -> Any:
        self.has_begun.set()
        happened = self._poll.poll(timeout)
        assert self.is_let_go.wait(30)
        return happened


@both_pools
def test_the_thread_that_waits_closes_the_descriptors(pool_class: Any) -> None:
    with pool_class() as pool:
        child: Any = pool.acquire()
        poll = child.peer._poll = HeldPoll(child.peer._poll)
        waiting = on_thread(child.start(f"{FUNCTIONS}:hang").wait)
        assert poll.has_begun.wait(30)
        pool.release(child)
        poll.is_let_go.set()
        assert isinstance(waiting.exception(30), ChildCrashed)
        until(lambda: child.peer._socket.fileno() == -1)


@both_pools
def test_the_task_of_a_cancelled_call_ends_after_the_release(pool_class: Any) -> None:
    async def main() -> None:
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
