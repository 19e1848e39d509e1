"""A level that cannot start is replaced by a weaker one, unless the pool is strict."""

import os
import signal

import pytest

from django_jobchains.children import limits, pooled_child
from django_jobchains.children.child_process import ChildProcess
from django_jobchains.pools import (
    ChildCrashed,
    ChildSession,
    ChildStartFailed,
    ChildTimeout,
    ReusablePool,
    TransientPool,
)
from tests.children.conftest import FUNCTIONS, run

DIES = f"{FUNCTIONS}:die_in_set_up"


@pytest.mark.parametrize(("pool_class", "level"), [(ReusablePool, "process"), (TransientPool, "transient")])
def test_a_child_that_dies_before_it_is_ready_is_replaced_by_a_thread(pool_class, level):
    fallbacks = []
    with pool_class(setup=DIES, on_fallback=fallbacks.append) as pool, ChildSession(pool) as child:
        assert run(child, "pid") == child.pid == os.getpid()
        assert run(child, "evaluate", "threading.current_thread().name") == "jobchains-pool-thread"
        assert child.level == "thread"
        with pytest.raises(ChildTimeout):  # A time limit stops the wait only.
            run(child, "hang", timeout=0.05)
        assert not child.is_alive
    (fallback,) = fallbacks
    assert (fallback.requested, fallback.actual) == (level, "thread")
    assert "exited with code 7 before it was ready" in fallback.reason
    assert "cannot be set up" in fallback.reason


def test_an_abandoned_thread_needs_no_signals_of_posix(monkeypatch):
    monkeypatch.setattr(pooled_child, "start_problem", lambda: "child processes need a POSIX system")
    monkeypatch.delattr(signal, "SIGKILL")
    with ReusablePool() as pool, ChildSession(pool) as child:
        with pytest.raises(ChildTimeout):
            run(child, "hang", timeout=0.05)
        with pytest.raises(ChildCrashed, match="abandoned") as caught:
            run(child, "echo", 1)
    assert caught.value.exitcode == -9


def test_a_strict_pool_raises_instead():
    with (
        ReusablePool(setup=DIES, strict=True, on_fallback=pytest.fail) as pool,
        pytest.raises(ChildStartFailed, match="'process' could start: it exited with code 7") as caught,
    ):
        pool.acquire()
    assert caught.value.level == "process"


def test_an_error_of_the_callback_does_not_matter(caplog):
    with ReusablePool(setup=DIES, on_fallback=lambda fallback: 1 / 0) as pool, ChildSession(pool) as child:
        assert run(child, "echo", 1) == 1
    assert "An on_fallback callback failed: ZeroDivisionError" in caplog.text


def test_the_requested_level_is_tried_again_after_a_pause(monkeypatch):
    starts = []

    class Recorded(ChildProcess):
        def __init__(self, isolation, imports):
            starts.append(isolation.level)
            super().__init__(isolation, imports)

    monkeypatch.setattr(pooled_child, "ChildProcess", Recorded)
    with ReusablePool(setup=DIES) as pool:
        for _ in range(2):
            with ChildSession(pool):
                assert pool.size == 1
            assert pool.size == 0
        assert len(starts) == 1
        pool._launcher._retry_at = 0
        with ChildSession(pool):
            assert len(starts) == 2


def test_a_system_without_child_processes_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(pooled_child, "start_problem", lambda: "child processes need a POSIX system")
    with pytest.raises(ChildStartFailed, match="POSIX"):
        TransientPool(strict=True)
    with ChildSession(TransientPool()) as child:
        assert child.level == "thread"
    assert "weaker on this system: child processes need a POSIX system" in caplog.text


def test_a_limit_that_the_system_does_not_enforce_is_reported_and_keeps_no_child_from_starting(monkeypatch, caplog):
    monkeypatch.setattr(limits, "_IS_LINUX", False)
    monkeypatch.setattr("resource.setrlimit", lambda *limits: pytest.fail("macOS refuses this"))
    with pytest.raises(ChildStartFailed, match="memory_limit is enforced on Linux only"):
        ReusablePool(memory_limit="1G", strict=True)
    ReusablePool(memory_limit="1G")
    assert "memory_limit is enforced on Linux only" in caplog.text
    limits.limit_memory(1024**3)
