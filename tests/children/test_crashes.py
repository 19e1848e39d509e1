"""A child that crashes or hangs fails its own call, and affects nothing else."""

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_jobchains.children import preload
from django_jobchains.exceptions import JobAborted
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.pools import (
    ChildCrashed,
    ChildSession,
    ChildTimeout,
    PooledChild,
    ReusablePool,
    TransientPool,
)
from django_jobchains.testing.contracts.concurrency import until
from tests.children.conftest import FUNCTIONS, is_running, kill, pids_in

Caught = Callable[[str, Any], ChildCrashed]


@pytest.fixture
def crash() -> Caught:
    """Call a function that ends its process, while another process continues."""

    def crash(name: str, payload: Any = None) -> ChildCrashed:
        with ReusablePool(2) as pool, ChildSession(pool) as neighbor:
            call = neighbor.start(f"{FUNCTIONS}:reason_of_abort")
            with ChildSession(pool) as child:
                with pytest.raises(ChildCrashed) as caught:
                    child.run(f"{FUNCTIONS}:{name}", payload, timeout=30)
                assert not child.is_alive
            assert pool.size == 1
            call.abort("cancelled")
            assert call.wait(30) == "cancelled"
        return caught.value

    return crash


@pytest.mark.usefixtures("each_way_to_start")
def test_an_exit_code_and_the_last_output_are_reported(crash: Caught) -> None:
    error = crash("exit_now", 3)
    assert (error.exitcode, error.stderr) == (3, "about to exit\n")
    assert str(error) == "The child process exited with code 3. Its last output: about to exit"


def test_a_signal_is_reported_as_a_negative_code(crash: Caught) -> None:
    error = crash("kill_itself", None)
    assert error.exitcode == -signal.SIGKILL
    assert "was killed by SIGKILL" in str(error)


def test_a_segmentation_fault_is_a_crash(crash: Caught) -> None:
    assert crash("crash", None).exitcode == -signal.SIGSEGV


def test_a_crash_is_noticed_though_another_process_has_the_socket_open(crash: Caught, tmp_path: Path) -> None:
    marks = tmp_path / "pids"
    try:
        assert crash("leave_socket_behind", str(marks)).exitcode == 5
    finally:
        for pid in pids_in(marks):
            kill(pid)


def test_the_last_four_kibibytes_of_the_output_are_kept(crash: Caught) -> None:
    stderr = crash("write_much_and_exit", None).stderr
    assert len(stderr) == 4096
    assert stderr.endswith("xxxthe end")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b"\0\0\0\4junk", "JSONDecodeError"),
        (b"\0\0\0\2\xff\xff", "can't decode byte 0xff"),
        (b"\0\0\0\2[]", "It is not an object"),
        ((100_000).to_bytes(4) + b"[" * 100_000, "It is nested too deeply"),
        (b"\xff\xff\xff\xff", r"4,294,967,295 bytes as JSON, and the limit is 69,206,016"),
    ],
)
def test_a_message_that_cannot_be_read_is_a_crash(crash: Caught, written: bytes, reason: str) -> None:
    error = crash("write_to_socket", written.hex())
    assert error.exitcode == -signal.SIGKILL
    assert "Its message cannot be read" in error.stderr
    assert re.search(reason.removeprefix("JSONDecodeError"), error.stderr)


def test_a_hanging_function_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    with ReusablePool(grace_seconds=0.2) as pool, ChildSession(pool) as child:
        with pytest.raises(ChildTimeout):
            child.run(f"{FUNCTIONS}:hang_without_sigterm", timeout=0.3)
        assert not child.is_alive
        assert not is_running(child.pid)


def test_a_function_that_ignores_an_abort_is_killed_after_the_grace() -> None:
    abort = AbortSignal()
    with ReusablePool(grace_seconds=0.2) as pool, ChildSession(pool) as child:
        threading.Timer(0.1, abort.abort, ["cancelled"]).start()
        with pytest.raises(JobAborted, match="cancelled"):
            child.run(f"{FUNCTIONS}:hang_without_sigterm", signal=abort)
        assert not child.is_alive


@pytest.mark.usefixtures("each_way_to_start")
def test_a_hanging_function_in_c_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    marks = tmp_path / "pids"
    with ReusablePool() as pool, ChildSession(pool) as child:
        call = child.start(f"{FUNCTIONS}:hang_in_c", str(marks))
        pids = until(lambda: pids_in(marks))
        call.kill()
        with pytest.raises(ChildCrashed) as caught:
            call.wait(30)
        assert caught.value.exitcode == -signal.SIGKILL
        until(lambda: not any(map(is_running, pids)))


def test_sigterm_ends_a_call() -> None:
    with ReusablePool() as pool, ChildSession(pool) as child:
        call = started(child, "hang")
        call.terminate()
        with pytest.raises(ChildCrashed) as caught:
            call.wait(30)
        assert caught.value.exitcode == -signal.SIGTERM


def test_an_interrupted_caller_does_not_leave_the_call_running() -> None:
    def interrupt(message: Any) -> None:
        raise KeyboardInterrupt

    with ReusablePool() as pool, ChildSession(pool) as child:
        start = child.start
        child.start = lambda target, payload: start(target, payload, on_message=interrupt)  # type: ignore[method-assign, assignment, misc]
        with pytest.raises(KeyboardInterrupt):
            child.run(f"{FUNCTIONS}:hang")
        until(lambda: not is_running(child.pid))


@pytest.mark.slow
def test_the_death_of_the_preload_process_is_a_crash_and_the_pool_recovers() -> None:
    with ReusablePool() as pool:
        with ChildSession(pool) as child:
            call = started(child, "hang")
            os.kill(preload.get_preload().pid, signal.SIGKILL)
            with pytest.raises(ChildCrashed, match="preload process") as caught:
                call.wait(30)
            assert caught.value.exitcode == -signal.SIGKILL
            until(lambda: not is_running(child.pid))
        with ChildSession(pool) as child:
            assert child.run(f"{FUNCTIONS}:echo", 1) == 1


@pytest.mark.slow
def test_a_preload_process_that_dies_while_a_child_starts_is_replaced() -> None:
    for _ in range(3):
        os.kill(preload.get_preload().pid, signal.SIGKILL)
        with ChildSession(TransientPool(strict=True)) as child:
            assert child.run(f"{FUNCTIONS}:echo", 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("each_way_to_start", ["forks"], indirect=True)
def test_descriptors_do_not_accumulate(each_way_to_start: None) -> None:
    def use() -> None:
        with ChildSession() as child:
            child.run(f"{FUNCTIONS}:echo", 1)

    use()
    processes = os.getpid(), preload.get_preload().pid
    before = [descriptors(pid) for pid in processes]
    for _ in range(300):
        use()
    # At most as many: some of the first child may still have been open.
    until(lambda: all(descriptors(pid) <= count for pid, count in zip(processes, before, strict=True)))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def started(child: PooledChild, name: str) -> Any:
    event: list[Any] = []
    call = child.start(f"{FUNCTIONS}:{name}", on_message=event.append)
    until(lambda: call.wait(0.01) and event)
    return call
