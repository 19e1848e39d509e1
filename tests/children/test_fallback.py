"""A level that cannot start is replaced by a weaker one, unless the pool is strict."""

import os
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from django_jobchains.children import launcher
from django_jobchains.children.child_process import ChildProcess
from django_jobchains.children.limits import limit_memory
from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import (
    ChildSession,
    ChildStartFailed,
    ChildTimeout,
    Fallback,
    Isolation,
    RemoteError,
    ReusablePool,
    TransientPool,
)
from tests.children.conftest import FUNCTIONS

DIES = f"{FUNCTIONS}:die_in_set_up"


@pytest.mark.parametrize(
    ("pool_class", "level"), [(ReusablePool, "process"), (TransientPool, "transient")], ids=["reusable", "transient"]
)
def test_a_child_that_dies_before_it_is_ready_is_replaced_by_a_thread(pool_class: Any, level: str) -> None:
    fallbacks: list[Fallback] = []
    with pool_class(setup=DIES, on_fallback=fallbacks.append) as pool, ChildSession(pool) as child:
        assert child.run(f"{FUNCTIONS}:pid") == child.pid == os.getpid()
        assert child.run(f"{FUNCTIONS}:thread_name") == "jobchains-pool-thread"
        assert child.level == "thread"
    (fallback,) = fallbacks
    assert (fallback.requested, fallback.actual) == (level, "thread")
    assert "exited with code 7 before it was ready" in fallback.reason
    assert "cannot be set up" in fallback.reason


def test_a_strict_pool_raises_instead() -> None:
    fallbacks: list[Fallback] = []
    with (
        ReusablePool(setup=DIES, strict=True, on_fallback=fallbacks.append) as pool,
        pytest.raises(ChildStartFailed, match="'process' could start: it exited with code 7") as caught,
    ):
        pool.acquire()
    assert caught.value.level == "process"
    assert fallbacks == []


def test_an_error_of_the_callback_does_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    def fail(fallback: Fallback) -> None:
        raise ValueError("no")

    with ReusablePool(setup=DIES, on_fallback=fail) as pool, ChildSession(pool) as child:
        assert child.run(f"{FUNCTIONS}:echo", 1) == 1
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
            with ChildSession(pool):
                assert pool.size == 1
            assert pool.size == 0
        assert len(starts) == 1
        pool._launcher._retry_at = 0
        with ChildSession(pool):
            assert len(starts) == 2


def test_a_thread_has_time_limits_that_stop_the_wait_only() -> None:
    with ReusablePool(setup=DIES) as pool, ChildSession(pool) as child:
        with pytest.raises(ChildTimeout):
            child.run(f"{FUNCTIONS}:hang", timeout=0.05)
        assert not child.is_alive


def test_a_thread_gets_aborts_messages_and_errors() -> None:
    signal = AbortSignal()
    received: list[Any] = []
    with ReusablePool(setup=DIES) as pool, ChildSession(pool) as child:
        with pytest.raises(RemoteError, match="ValueError: no"):
            child.run(f"{FUNCTIONS}:fail", "no")
        call = child.start(f"{FUNCTIONS}:send_all", [1, 2], on_message=received.append)
        assert (call.wait(), received) == ("sent", [1, 2])
        threading.Timer(0.05, signal.abort, ["cancelled"]).start()
        with pytest.raises(JobAborted):
            child.run(f"{FUNCTIONS}:wait_for_abort", signal=signal)


def test_a_thread_gets_a_copy_of_the_payload() -> None:
    payload = {"list": [1]}
    with ReusablePool(setup=DIES) as pool, ChildSession(pool) as child:
        result = child.run(f"{FUNCTIONS}:echo", payload)
    assert result == payload
    assert result["list"] is not payload["list"]


def test_a_system_without_child_processes_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launcher, "start_problem", lambda: "child processes need a POSIX system")
    with pytest.raises(ChildStartFailed, match="POSIX"):
        TransientPool(strict=True)
    with ChildSession(TransientPool()) as child:
        assert child.level == "thread"
    assert "weaker on this system: child processes need a POSIX system" in caplog.text


def test_a_limit_that_the_system_does_not_enforce_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_jobchains.children.limits._IS_LINUX", False)
    with pytest.raises(ChildStartFailed, match="memory_limit is enforced on Linux only"):
        ReusablePool(memory_limit="1G", strict=True)
    ReusablePool(memory_limit="1G")
    assert "memory_limit is enforced on Linux only" in caplog.text


def test_a_limit_that_the_system_does_not_enforce_does_not_keep_a_child_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_jobchains.children.limits._IS_LINUX", False)
    monkeypatch.setattr("resource.setrlimit", lambda *limits: pytest.fail("macOS refuses this"))
    limit_memory(1024**3)
