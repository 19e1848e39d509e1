"""A worker belongs to one caller until its release, and only that caller can release it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from django_jobchains.pools import ReusablePool, TransientPool, WorkerCrashed
from tests.pools.conftest import FUNCTIONS, is_running
from tests.support.waiting import until

both_pools = pytest.mark.parametrize("pool_class", [ReusablePool, TransientPool])


@both_pools
def test_a_wait_that_begins_after_the_release_raises(pool_class: Any) -> None:
    with pool_class() as pool:
        worker = pool.acquire()
        call = worker.start(f"{FUNCTIONS}:hang")
        pool.release(worker)
        with pytest.raises(WorkerCrashed):
            call.wait(30)


def test_a_process_counts_until_it_has_ended() -> None:
    """A stopped process does not end before it is killed."""
    with ReusablePool(1, grace_seconds=0.1) as pool:
        for replace in ("another key", "a release", "its time"):
            worker = pool.acquire("a")
            os.kill(worker.pid, signal.SIGSTOP)
            if replace == "a release":
                pool.release(worker, broken=True)
            elif replace == "its time":
                pool._idle._ttl = 0.001
            pool.release(worker)
            other = pool.acquire("b")
            assert not is_running(worker.pid)
            pool._idle._ttl = None
            pool.release(other, broken=True)


@both_pools
def test_a_pid_is_not_used_again_while_the_worker_is_held(pool_class: Any) -> None:
    """Signals are sent to the pid."""
    with pool_class() as pool:
        worker = pool.acquire()
        with pytest.raises(WorkerCrashed):
            worker.run(f"{FUNCTIONS}:kill_itself")
        assert state_of(worker.pid) == "Z"
        pool.release(worker)
        until(lambda: state_of(worker.pid) is None)


def state_of(pid: int) -> str | None:
    """Return the state of a process, such as "Z" if it has ended and its parent has not collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
