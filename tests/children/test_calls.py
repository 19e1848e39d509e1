"""A call runs in a child, or in the thread that replaces one, and its result, error and messages come back."""

import math
import os
import signal
import threading
import time
from datetime import timedelta

import pytest

from django_jobchains.children.call_loop import CallLoop
from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import PENDING, Call, ChildCrashed, ChildSession, RemoteError, ReusablePool, current_signal
from tests.children.conftest import FUNCTIONS, begun, pids_in, run
from tests.support.waiting import until

STEP = f"{FUNCTIONS}:step"


@pytest.mark.parametrize("value", [None, 1.5, "ü\ud800\0", [1, {"a": [True]}], {"long": "x" * 3_000_000}])
def test_payload_and_result_are_json_and_copies(child, value):
    result = run(child, "echo", value, timeout="30s")
    assert result == value
    assert not isinstance(value, list) or (result is not value and result[1] is not value[1])


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, b"bytes"])
def test_a_payload_that_is_not_json_is_refused_before_the_call(child, value):
    with pytest.raises((TypeError, ValueError), match="JSON"):
        run(child, "echo", value)
    assert run(child, "echo", 1) == 1


@pytest.mark.parametrize(
    ("name", "payload", "type_name", "message"),
    [
        ("fail", "no such image", "ValueError", "no such image"),
        ("evaluate", "sys.exit(3)", "SystemExit", "3"),
        ("evaluate", "object()", "TypeError", "Object of type object is not JSON serializable"),
        ("recurse", None, "RecursionError", "maximum recursion depth exceeded"),
        ("absent", None, "AttributeError", "module"),
    ],
)
def test_an_error_arrives_as_text_and_the_child_lives(child, name, payload, type_name, message):
    with pytest.raises(RemoteError, match=type_name) as caught:
        run(child, name, payload)
    error = caught.value
    assert (error.type_name, error.message.startswith(message), error.__cause__) == (type_name, True, None)
    assert name != "fail" or "in fail" in error.traceback
    assert run(child, "pid") == child.pid


@pytest.mark.parametrize("level", ["process", "thread"])
@pytest.mark.parametrize("expression", ["'x' * {}", "send('x' * {})"])
def test_a_message_above_the_limit_is_an_error_in_the_function(monkeypatch, level, expression):
    if level == "thread":
        monkeypatch.setattr("django_jobchains.children.pooled_child.start_problem", lambda: "none here")
    with ReusablePool(message_limit="1M") as pool, ChildSession(pool) as child:
        assert child.level == level
        run(child, "evaluate", expression.format(1_000_000))
        with pytest.raises(RemoteError, match=r"and the limit is 1,048,576\. Pass the path") as caught:
            run(child, "evaluate", expression.format(1_050_000))
        assert caught.value.type_name == "MessageTooLarge"
        run(child, "evaluate", expression.format(1))
        with pytest.raises(RemoteError, match=r"ValueError: x+\n"):  # An error is cut, and never too large.
            run(child, "fail", "x" * 1_000_000)


def test_a_target_is_a_module_and_a_function_and_a_timeout_a_duration(process):
    for target in ("os.system", "os:", ":f", "a b:c", None):
        with pytest.raises(ValueError, match="use 'module:function'"):
            process.run(target)
    for timeout in (0, -1, "1", float("nan")):
        with pytest.raises((TypeError, ValueError), match="is not a duration"):
            run(process, "echo", timeout=timeout)


def test_the_function_sends_messages_to_the_thread_that_waits(child):
    received = []
    call = child.start(f"{FUNCTIONS}:send_all", [1, {"percent": 50}], on_message=received.append)
    assert call.wait() == "sent"
    assert received == [1, {"percent": 50}]
    assert run(child, "send_all", [1]) == "sent"  # Messages that nobody asked for are ignored.


def test_a_call_that_has_not_ended_is_pending(child):
    call = child.start(f"{FUNCTIONS}:wait_for_abort")
    assert call.wait("10ms") is PENDING
    assert child.is_busy
    with pytest.raises(RuntimeError, match="runs another call"):
        child.start(f"{FUNCTIONS}:echo")
    call.abort("cancelled")
    assert [call.wait(), call.wait()] == ["cancelled"] * 2
    assert not child.is_busy


@pytest.mark.parametrize("timeout", [math.inf, timedelta(days=30), timedelta(days=330_000)], ids=repr)
def test_a_timeout_may_be_of_any_length(child, timeout):
    assert child.start(f"{FUNCTIONS}:echo", 7).wait(timeout) == 7
    if timeout != math.inf:
        assert run(child, "echo", 7, timeout=timeout) == 7


def test_a_call_that_sends_faster_than_it_is_read_is_pending_after_the_timeout():
    with ReusablePool() as pool, ChildSession(pool) as child:
        call = child.start(f"{FUNCTIONS}:send_forever", on_message=lambda message: time.sleep(0.01))
        assert call.wait(0.1) is PENDING


def test_an_abort_reaches_the_signal_of_its_own_call_only(child):
    call = child.start(f"{FUNCTIONS}:echo", 1)
    call.wait()
    call.abort("cancelled")
    second = child.start(f"{FUNCTIONS}:wait_for_abort")
    assert second.wait(0.05) is PENDING
    second.abort("timed_out")
    assert second.wait() == "timed_out"


def test_an_abort_that_arrives_before_its_call_is_not_lost():
    written = []
    loop = CallLoop(written.append, 1000)
    loop.abort(5, "cancelled")
    message = {"target": f"{FUNCTIONS}:wait_for_abort", "cpu_seconds": None, "calls": [(5, None)]}
    loop.run([message], lambda: 5)
    assert b'"result":"cancelled"' in written[-1]


@pytest.mark.parametrize("name", ["stop_when_aborted", "wait_for_abort"], ids=["raises", "returns"])
def test_an_aborted_signal_stops_the_call(child, name):
    signal = AbortSignal()
    threading.Timer(0.05, signal.abort, ["cancelled"]).start()
    with pytest.raises(JobAborted, match="cancelled"):
        run(child, name, signal=signal)
    assert run(child, "echo", 1) == 1
    assert signal.listeners == []


def test_a_signal_that_is_aborted_already_prevents_the_call(child):
    signal = AbortSignal()
    signal.abort("cancelled")
    jobs = child.jobs
    with pytest.raises(JobAborted):
        run(child, "echo", signal=signal)
    assert child.jobs == jobs


def test_a_child_that_got_a_signal_is_not_used_again():
    with ReusablePool() as pool:
        with ChildSession(pool) as child:
            call = begun(child, "wait_for_abort_despite_sigterm")
            call.terminate()
            call.abort("cancelled")
            assert call.wait(30) == "cancelled"
        assert pool.size == 0


def test_the_signal_exists_in_calls_only():
    with pytest.raises(RuntimeError, match="does not run in a call"):
        current_signal()


# Calls that are sent together


def test_those_that_have_not_begun_can_be_withdrawn_and_do_not_run_instead_of_later_ones(child):
    begun = []
    for _ in range(3):
        jobs = child.jobs
        calls = child.start_all(STEP, ["wait", "die", "die"], on_message=begun.append)
        until(lambda call=calls[0]: call.wait(0.01) is PENDING and begun)
        child.withdraw()
        assert [call.is_withdrawn for call in calls] == [False, True, True]
        assert child.jobs == jobs + 1
        assert child.is_busy
        calls[0].abort("cancelled")
        assert calls[0].wait() == "cancelled"
        assert not child.is_busy
        begun.clear()
        assert [call.wait() for call in child.start_all(STEP, [4, 5])] == [4, 5]


def test_a_crash_is_that_of_the_call_that_ran(process):
    calls = process.start_all(STEP, [1, "die", 3])
    assert calls[0].wait() == 1
    with pytest.raises(ChildCrashed):
        calls[1].wait()
    process.withdraw()
    assert [call.is_withdrawn for call in calls] == [False, False, True]


@pytest.mark.parametrize("withdraws", [True, False])
def test_they_can_be_withdrawn_while_c_code_holds_the_gil_and_the_first_can_be_killed(process, tmp_path, withdraws):
    marks = tmp_path / "marks"
    calls = process.start_all(STEP, [[str(marks)], *range(4000)])
    until(lambda: pids_in(marks))
    if withdraws:
        process.withdraw()
        assert [call.is_withdrawn for call in calls] == [False, *[True] * 4000]
    calls[0].kill()
    with pytest.raises(ChildCrashed):
        calls[0].wait(30)


@pytest.mark.parametrize("end", [Call.terminate, Call.kill])
def test_ending_one_that_is_over_does_not_end_the_next(process, tmp_path, end):
    mark = tmp_path / "mark"
    over, running, behind = process.start_all(f"{FUNCTIONS}:touch_and_wait", [None, str(mark), None])
    until(mark.exists)
    end(over)  # its reply has not been read
    assert not process.is_signalled
    assert behind.is_withdrawn
    assert over.wait() is None
    running.abort("cancelled")
    assert running.wait() == "cancelled"


@pytest.mark.parametrize("end", [Call.terminate, Call.kill])
def test_a_call_that_a_busy_child_has_not_begun_ends_with_its_child(process, end):
    os.kill(process.pid, signal.SIGSTOP)
    call = process.start(STEP, 1)
    process.withdraw()
    end(call)
    os.kill(process.pid, signal.SIGCONT)
    with pytest.raises(ChildCrashed):
        call.wait(30)


def test_more_of_them_than_fit_are_refused_at_once(process):
    jobs = process.jobs
    with pytest.raises(ValueError, match=r"100000 calls are too many to start at once: start at most \d+"):
        process.start_all(STEP, range(100_000))
    assert process.jobs == jobs
    assert process.run(STEP, 1) == 1
