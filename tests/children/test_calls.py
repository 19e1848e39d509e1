"""A call runs in the child's process, and its result, error and messages come back."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_jobchains.children.call_loop import CallLoop
from django_jobchains.exceptions import JobAborted, JobchainsError
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import (
    PENDING,
    ChildSession,
    ChildTimeout,
    RemoteError,
    ReusablePool,
    current_signal,
)
from django_jobchains.testing.contracts.concurrency import until
from tests.children.conftest import FUNCTIONS

Run = Callable[..., Any]


@pytest.mark.parametrize("value", [None, 1.5, "ü\ud800\0", [1, {"a": [True]}], {"long": "x" * 3_000_000}])
def test_payload_and_result_are_json(run: Run, value: Any) -> None:
    assert run("echo", value) == value


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"bytes"])
def test_a_payload_that_is_not_json_is_refused_before_the_call(run: Run, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="JSON"):
        run("echo", value)
    assert run("echo", 1) == 1


def test_an_error_arrives_as_text_and_the_child_lives(shared_pool: ReusablePool) -> None:
    with ChildSession(shared_pool) as child:
        with pytest.raises(RemoteError, match="ValueError: no such image") as caught:
            child.run(f"{FUNCTIONS}:fail", "no such image")
        error = caught.value
        assert (error.type_name, error.message) == ("ValueError", "no such image")
        assert "in fail" in error.traceback
        assert isinstance(error, JobchainsError)
        assert error.__cause__ is None
        assert child.run(f"{FUNCTIONS}:pid") == child.pid


@pytest.mark.parametrize(
    ("name", "type_name"),
    [
        ("exit_python", "SystemExit"),
        ("recurse", "RecursionError"),
        ("return_object", "TypeError"),
        ("absent", "AttributeError"),
    ],
)
def test_what_goes_wrong_inside_is_an_ordinary_error(run: Run, name: str, type_name: str) -> None:
    with pytest.raises(RemoteError) as caught:
        run(name)
    assert caught.value.type_name == type_name
    assert run("echo", 1) == 1


@pytest.mark.parametrize("level", ["process", "thread"])
@pytest.mark.parametrize("name", ["return_letters", "send_letters"])
def test_a_message_above_the_limit_is_an_error_in_the_function(
    monkeypatch: pytest.MonkeyPatch, level: str, name: str
) -> None:
    if level == "thread":
        monkeypatch.setattr("django_jobchains.children.launcher.start_problem", lambda: "none here")
    with ReusablePool(message_limit="1M") as pool, ChildSession(pool) as child:
        assert child.level == level
        child.run(f"{FUNCTIONS}:{name}", 1_000_000)
        with pytest.raises(RemoteError, match=r"and the limit is 1,048,576\. Pass the path") as caught:
            child.run(f"{FUNCTIONS}:{name}", 1_050_000)
        assert caught.value.type_name == "MessageTooLarge"
        child.run(f"{FUNCTIONS}:{name}", 1)


def test_an_error_is_not_limited() -> None:
    with (
        ReusablePool(message_limit=1000) as pool,
        ChildSession(pool) as child,
        pytest.raises(RemoteError, match=r"ValueError: x+\n"),
    ):
        child.run(f"{FUNCTIONS}:fail", "x" * 1_000_000)


@pytest.mark.parametrize("target", ["os.system", "os:", ":f", "a b:c", None])
def test_a_target_is_a_module_and_a_function(shared_pool: ReusablePool, target: Any) -> None:
    with ChildSession(shared_pool) as child, pytest.raises(ValueError, match="use 'module:function'"):
        child.run(target)


def test_the_function_sends_messages_to_the_thread_that_waits(shared_pool: ReusablePool) -> None:
    received: list[Any] = []
    with ChildSession(shared_pool) as child:
        call = child.start(
            f"{FUNCTIONS}:send_all", [1, {"percent": 50}], on_message=lambda message: received.append(message)
        )
        assert call.wait() == "sent"
    assert received == [1, {"percent": 50}]


def test_messages_that_nobody_asked_for_are_ignored(run: Run) -> None:
    assert run("send_all", [1]) == "sent"


def test_a_call_that_has_not_ended_is_pending(shared_pool: ReusablePool) -> None:
    with ChildSession(shared_pool) as child:
        call = child.start(f"{FUNCTIONS}:reason_of_abort")
        assert call.wait(0.01) is PENDING
        assert child.is_busy
        with pytest.raises(RuntimeError, match="runs another call"):
            child.start(f"{FUNCTIONS}:echo")
        call.abort("cancelled")
        assert call.wait() == "cancelled"
        assert call.wait() == "cancelled"
        assert not child.is_busy


def test_an_abort_reaches_the_signal_of_its_own_call_only(shared_pool: ReusablePool) -> None:
    with ChildSession(shared_pool) as child:
        call = child.start(f"{FUNCTIONS}:echo", 1)
        call.wait()
        call.abort("cancelled")
        second = child.start(f"{FUNCTIONS}:reason_of_abort")
        assert second.wait(0.05) is PENDING
        second.abort("timed_out")
        assert second.wait() == "timed_out"


def test_an_aborted_signal_stops_the_call(shared_pool: ReusablePool) -> None:
    signal = AbortSignal()
    with ChildSession(shared_pool) as child:
        threading.Timer(0.05, signal.abort, ["cancelled"]).start()
        with pytest.raises(JobAborted, match="cancelled"):
            child.run(f"{FUNCTIONS}:wait_for_abort", signal=signal)
        assert child.run(f"{FUNCTIONS}:echo", 1) == 1
    assert signal.listeners == []


def test_a_result_after_the_abort_is_discarded(run: Run) -> None:
    signal = AbortSignal()
    threading.Timer(0.05, signal.abort, ["cancelled"]).start()
    with pytest.raises(JobAborted):
        run("reason_of_abort", signal=signal)


def test_a_signal_that_is_aborted_already_prevents_the_call(shared_pool: ReusablePool) -> None:
    signal = AbortSignal()
    signal.abort("cancelled")
    with ChildSession(shared_pool) as child:
        jobs = child.jobs
        with pytest.raises(JobAborted):
            child.run(f"{FUNCTIONS}:echo", signal=signal)
        assert child.jobs == jobs


def test_a_call_ends_at_its_timeout() -> None:
    with ReusablePool() as pool, ChildSession(pool) as child:
        with pytest.raises(ChildTimeout, match=r"'tests\.children\.functions:hang' did not return within 0\.1 seconds"):
            child.run(f"{FUNCTIONS}:hang", timeout=0.1)
        assert issubclass(ChildTimeout, TimeoutError)
        assert not child.is_alive
        assert child.rss == 0


def test_a_call_that_sends_faster_than_it_is_read_is_pending_after_the_timeout() -> None:
    with ReusablePool() as pool, ChildSession(pool) as child:
        call = child.start(f"{FUNCTIONS}:send_forever", on_message=lambda message: time.sleep(0.01))
        assert call.wait(0.1) is PENDING


def test_an_abort_that_arrives_before_its_call_is_not_lost() -> None:
    written: list[bytes] = []
    loop = CallLoop(written.append, 1000)
    loop.abort(5, "cancelled")
    message = {"target": f"{FUNCTIONS}:reason_of_abort", "cpu_seconds": None, "calls": [(5, None)]}
    loop.run([message], lambda: 5)
    assert b'"result":"cancelled"' in written[-1]


@pytest.mark.parametrize("timeout", [0, -1, "1", float("nan")])
def test_a_timeout_is_a_number_of_seconds(run: Run, timeout: Any) -> None:
    with pytest.raises(ValueError, match="is not valid: use a number of seconds"):
        run("echo", timeout=timeout)


def test_a_child_that_got_a_signal_is_not_used_again() -> None:
    with ReusablePool() as pool:
        with ChildSession(pool) as child:
            messages: list[Any] = []
            call = child.start(f"{FUNCTIONS}:reason_of_abort_despite_sigterm", on_message=messages.append)
            until(lambda: call.wait(0.01) and messages)
            call.terminate()
            call.abort("cancelled")
            assert call.wait(30) == "cancelled"
        assert pool.size == 0


def test_a_signal_after_the_call_does_nothing(shared_pool: ReusablePool) -> None:
    with ChildSession(shared_pool) as child:
        call = child.start(f"{FUNCTIONS}:echo", 1)
        call.wait()
        call.terminate()
        call.kill()
        assert child.run(f"{FUNCTIONS}:echo", 2) == 2


def test_a_call_within_its_timeout_returns(run: Run) -> None:
    assert run("echo", 1, timeout=30) == 1


def test_the_signal_exists_in_calls_only() -> None:
    with pytest.raises(RuntimeError, match="does not run in a call"):
        current_signal()


def test_a_child_reports_its_process(shared_pool: ReusablePool) -> None:
    with ChildSession(shared_pool) as child:
        jobs = child.jobs
        child.run(f"{FUNCTIONS}:echo")
        assert child.jobs == jobs + 1
        assert child.rss > 1024**2
        assert child.is_alive
        assert child.level == "process"
