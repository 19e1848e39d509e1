"""A child that crashes or hangs fails its own call, gets the grace to end, and affects nothing else."""

import os
import re
import signal
import threading
from types import SimpleNamespace

import pytest

from django_jobchains.children import child_process, pooled_child
from django_jobchains.children.pooled_child import AbortWatch
from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import (
    ChildCrashed,
    ChildSession,
    ChildTimeout,
    Isolation,
    PooledChild,
    ReusablePool,
    TransientPool,
)
from tests.children.conftest import FUNCTIONS, begun, in_child, is_running, kill, open_files, pids_in, run
from tests.support.waiting import until


def crash(name, payload=None):
    """Call a function that ends its process, while another process continues. Return the error."""
    with ReusablePool(2) as pool, ChildSession(pool) as neighbor:
        call = neighbor.start(f"{FUNCTIONS}:wait_for_abort")
        with ChildSession(pool) as child:
            with pytest.raises(ChildCrashed) as caught:
                run(child, name, payload, timeout=30)
            assert not child.is_alive
        assert pool.size == 1
        call.abort("cancelled")
        assert call.wait(30) == "cancelled"
    return caught.value


@pytest.mark.usefixtures("each_way_to_start")
@pytest.mark.parametrize(
    ("expression", "exitcode", "text"),
    [
        ("print('about to exit', file=sys.stderr, flush=True) or os._exit(3)", 3, "exited with code 3"),
        ("os.kill(os.getpid(), 9)", -9, "was killed by SIGKILL"),
        ("ctypes.string_at(0)", -signal.SIGSEGV, "was killed by SIGSEGV"),
    ],
)
def test_an_exit_code_or_signal_and_the_last_output_are_reported(expression, exitcode, text):
    error = crash("evaluate", expression)
    output = "about to exit\n" * (exitcode == 3)
    assert (error.exitcode, error.stderr) == (exitcode, output)
    assert str(error) == f"The child process {text}." + " Its last output: about to exit" * bool(output)


def test_the_last_four_kibibytes_of_the_output_are_kept():
    error = crash("evaluate", "os.write(2, b'x' * 300_000 + b'the end') and os._exit(1)")
    assert len(error.stderr) == 4096
    assert error.stderr.endswith("xxxthe end")


def test_a_crash_is_noticed_though_another_process_has_the_socket_open(tmp_path):
    marks = tmp_path / "pids"
    try:
        assert crash("leave_socket_behind", str(marks)).exitcode == 5
    finally:
        for pid in pids_in(marks):
            kill(pid)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b"\0\0\0\4junk", ""),
        (b"\0\0\0\2\xff\xff", "can't decode byte 0xff"),
        (b"\0\0\0\2[]", "It is not an object"),
        ((100_000).to_bytes(4) + b"[" * 100_000, "It is nested too deeply"),
        (b"\xff\xff\xff\xff", r"4,294,967,295 bytes as JSON, and the limit is 69,206,016"),
    ],
)
def test_a_message_that_cannot_be_read_is_a_crash(written, reason):
    error = crash("write_to_socket", written.hex())
    assert error.exitcode == -signal.SIGKILL
    assert "Its message cannot be read" in error.stderr
    assert re.search(reason, error.stderr)


@pytest.mark.parametrize("name", ["hang", "hang_without_sigterm"])
@pytest.mark.parametrize("reason", ["timeout", "abort"])
def test_a_call_that_does_not_stop_is_ended_after_the_grace(name, reason):
    abort = AbortSignal()
    options = {"timeout": 0.1} if reason == "timeout" else {"signal": abort}
    with ReusablePool(grace_seconds=0.2) as pool, ChildSession(pool) as child:
        threading.Timer(0.1, abort.abort, ["cancelled"]).start()
        with pytest.raises(ChildTimeout if reason == "timeout" else JobAborted) as caught:
            run(child, name, **options)
        assert not child.is_alive
        assert not is_running(child.pid)
        assert child.rss == 0
    texts = {
        "timeout": f"'{FUNCTIONS}:{name}' did not return within 0.1 seconds, and was stopped.",
        "abort": "The attempt was asked to stop: cancelled.",
    }
    assert str(caught.value) == texts[reason]
    assert issubclass(ChildTimeout, TimeoutError)


@pytest.mark.usefixtures("each_way_to_start")
def test_a_hanging_function_in_c_is_ended_with_what_it_has_started(tmp_path):
    marks = tmp_path / "pids"
    with ReusablePool() as pool, ChildSession(pool) as child:
        call = child.start(f"{FUNCTIONS}:hang_in_c", str(marks))
        pids = until(lambda: pids_in(marks))
        call.kill()
        with pytest.raises(ChildCrashed) as caught:
            call.wait(30)
        assert caught.value.exitcode == -signal.SIGKILL
        until(lambda: not any(map(is_running, pids)))


def test_an_interrupted_caller_does_not_leave_the_call_running():
    def interrupt(message):
        raise KeyboardInterrupt

    with ReusablePool() as pool, ChildSession(pool) as child:
        start = child.start
        child.start = lambda target, payload: start(target, payload, on_message=interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(child, "hang")
        until(lambda: not is_running(child.pid))


@pytest.mark.slow
def test_the_death_of_the_preload_process_is_a_crash_and_the_pool_recovers():
    with ReusablePool() as pool:
        with ChildSession(pool) as child:
            call = begun(child, "hang")
            os.kill(child_process.get_preload().pid, signal.SIGKILL)
            with pytest.raises(ChildCrashed, match="preload process") as caught:
                call.wait(30)
            assert caught.value.exitcode == -signal.SIGKILL
            until(lambda: not is_running(child.pid))
        assert in_child(pool, "echo", 1) == 1


@pytest.mark.slow
def test_a_preload_process_that_dies_while_a_child_starts_is_replaced():
    for _ in range(3):
        os.kill(child_process.get_preload().pid, signal.SIGKILL)
        assert in_child(TransientPool(strict=True), "echo", 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("each_way_to_start", ["forks"], indirect=True)
def test_descriptors_do_not_accumulate(each_way_to_start):
    in_child(TransientPool(), "echo", 1)
    processes = os.getpid(), child_process.get_preload().pid
    before = [len(open_files(pid)) for pid in processes]
    for _ in range(300):
        in_child(TransientPool(), "echo", 1)
    # At most as many: some of the first child may still have been open.
    until(lambda: all(len(open_files(pid)) <= count for pid, count in zip(processes, before, strict=True)))


# The time between the signals

GRACE_SECONDS = 1000


@pytest.fixture
def call():
    """A call in a process that never replies. It records what is sent, and how long its caller waits."""
    seen = []
    peer = SimpleNamespace(
        is_alive=True,
        send=lambda message: None,
        withdraw=set,
        abort=lambda *arguments: seen.append("abort"),
        receive=lambda timeout: seen.append(round(timeout or 0, -2)),
        terminate=lambda: seen.append("SIGTERM"),
        kill=lambda: seen.append("SIGKILL"),
    )
    isolation = Isolation("process", grace_seconds=GRACE_SECONDS)
    child = PooledChild(peer, key="default", isolation=isolation, next_request_id=lambda: 1)
    call = child.start("module:function")
    call.seen = seen
    return call


@pytest.fixture
def abort(monkeypatch, call):
    """A signal whose watch does not wait. The times are recorded instead."""

    class Event(threading.Event):
        def wait(self, timeout=None):
            call.seen.append(timeout or 0)
            return False

    patched = SimpleNamespace(Event=Event, Thread=threading.Thread, Lock=threading.Lock, RLock=threading.RLock)
    monkeypatch.setattr(pooled_child, "threading", patched)
    return AbortSignal()


def test_a_call_past_its_timeout_has_the_grace_to_end(call):
    call.stop(GRACE_SECONDS)
    assert call.seen[:3] == ["SIGTERM", GRACE_SECONDS, "SIGKILL"]


def test_an_aborted_call_has_half_of_the_grace_before_each_signal(call, abort):
    with AbortWatch(call, abort, GRACE_SECONDS):
        abort.abort("cancelled")
        until(lambda: "SIGKILL" in call.seen)
    assert call.seen == ["abort", GRACE_SECONDS / 2, "SIGTERM", GRACE_SECONDS / 2, "SIGKILL"]


def test_a_call_that_ends_gets_no_signal(call, abort):
    watch = AbortWatch(call, abort, GRACE_SECONDS)
    call.abort = lambda reason: watch.__exit__(None, None, None)
    with watch:
        abort.abort("cancelled")
        until(lambda: call.seen and not any(each.name == "jobchains-abort-watch" for each in threading.enumerate()))
    assert call.seen == [GRACE_SECONDS / 2]
