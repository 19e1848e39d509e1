"""A level that cannot start is replaced by a weaker one, unless the pool is strict."""

import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import (
    Fallback,
    Isolation,
    RemoteError,
    ReusablePool,
    TransientPool,
    WorkerSession,
    WorkerStartFailed,
    WorkerTimeout,
    launcher,
)
from django_jobchains.pools.child_process import ChildProcess
from django_jobchains.pools.limits import limit_memory
from tests.pools.conftest import FUNCTIONS

DIES = f"{FUNCTIONS}:die_in_set_up"


@pytest.mark.parametrize(
    ("pool_class", "level"), [(ReusablePool, "process"), (TransientPool, "transient")], ids=["reusable", "transient"]
)
def test_a_child_that_dies_before_it_is_ready_is_replaced_by_a_thread(pool_class: Any, level: str) -> None:
    fallbacks: list[Fallback] = []
    with pool_class(setup=DIES, on_fallback=fallbacks.append) as pool, WorkerSession(pool) as worker:
        assert worker.run(f"{FUNCTIONS}:pid") == worker.pid == os.getpid()
        assert worker.run(f"{FUNCTIONS}:thread_name") == "jobchains-pool-thread"
        assert worker.level == "thread"
    (fallback,) = fallbacks
    assert (fallback.requested, fallback.actual) == (level, "thread")
    assert "exited with code 7 before it was ready" in fallback.reason
    assert "cannot be set up" in fallback.reason


def test_a_strict_pool_raises_instead() -> None:
    fallbacks: list[Fallback] = []
    with (
        ReusablePool(setup=DIES, strict=True, on_fallback=fallbacks.append) as pool,
        pytest.raises(WorkerStartFailed, match="'process' could start: it exited with code 7") as caught,
    ):
        pool.acquire()
    assert caught.value.level == "process"
    assert fallbacks == []


def test_an_error_of_the_callback_does_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    def fail(fallback: Fallback) -> None:
        raise ValueError("no")

    with ReusablePool(setup=DIES, on_fallback=fail) as pool, WorkerSession(pool) as worker:
        assert worker.run(f"{FUNCTIONS}:echo", 1) == 1
    assert "An on_fallback callback failed: ValueError: no" in caplog.text


def test_the_requested_level_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[str] = []

    class Recorded(ChildProcess):
        def __init__(self, isolation: Isolation, imports: Sequence[str]) -> None:
            starts.append(isolation.level)
            super().__init__(isolation, imports)

    monkeypatch.setattr(launcher, "ChildProcess", Recorded)
    with ReusablePool(setup=DIES) as pool:
        for _ in range(2):
            with WorkerSession(pool):
                assert pool.size == 1
            assert pool.size == 0
        assert len(starts) == 1
        pool._launcher._retry_at = 0
        with WorkerSession(pool):
            assert len(starts) == 2


def test_a_thread_has_time_limits_that_stop_the_wait_only() -> None:
    with ReusablePool(setup=DIES) as pool, WorkerSession(pool) as worker:
        with pytest.raises(WorkerTimeout):
            worker.run(f"{FUNCTIONS}:hang", timeout=0.05)
        assert not worker.is_alive


def test_a_thread_gets_aborts_messages_and_errors() -> None:
    signal = AbortSignal()
    received: list[Any] = []
    with ReusablePool(setup=DIES) as pool, WorkerSession(pool) as worker:
        with pytest.raises(RemoteError, match="ValueError: no"):
            worker.run(f"{FUNCTIONS}:fail", "no")
        call = worker.start(f"{FUNCTIONS}:send_all", [1, 2], on_message=received.append)
        assert (call.wait(), received) == ("sent", [1, 2])
        threading.Timer(0.05, signal.abort, ["cancelled"]).start()
        with pytest.raises(JobAborted):
            worker.run(f"{FUNCTIONS}:wait_for_abort", signal=signal)


def test_a_thread_gets_a_copy_of_the_payload() -> None:
    payload = {"list": [1]}
    with ReusablePool(setup=DIES) as pool, WorkerSession(pool) as worker:
        result = worker.run(f"{FUNCTIONS}:echo", payload)
    assert result == payload
    assert result["list"] is not payload["list"]


def test_a_system_without_child_processes_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launcher, "start_problem", lambda: "child processes need a POSIX system")
    with pytest.raises(WorkerStartFailed, match="POSIX"):
        TransientPool(strict=True)
    with WorkerSession(TransientPool()) as worker:
        assert worker.level == "thread"
    assert "weaker on this system: child processes need a POSIX system" in caplog.text


def test_a_limit_that_the_system_does_not_enforce_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_jobchains.pools.limits._IS_LINUX", False)
    with pytest.raises(WorkerStartFailed, match="memory_limit is enforced on Linux only"):
        ReusablePool(memory_limit="1G", strict=True)
    ReusablePool(memory_limit="1G")
    assert "memory_limit is enforced on Linux only" in caplog.text


def test_a_limit_that_the_system_does_not_enforce_does_not_keep_a_child_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_jobchains.pools.limits._IS_LINUX", False)
    monkeypatch.setattr("resource.setrlimit", lambda *limits: pytest.fail("macOS refuses this"))
    limit_memory(1024**3)
