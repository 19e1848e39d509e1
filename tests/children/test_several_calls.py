"""Calls that are sent to a child together: each of them can be withdrawn until it has begun."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_jobchains.pools import (
    PENDING,
    Call,
    ChildCrashed,
    ChildSession,
    PooledChild,
    ReusablePool,
)
from django_jobchains.testing.contracts.concurrency import until
from tests.children.conftest import FUNCTIONS, pids_in

STEP = f"{FUNCTIONS}:step"


@pytest.fixture(params=["process", "thread"])
def child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[PooledChild]:
    """A child process, or the thread that replaces one."""
    if request.param == "thread":
        monkeypatch.setattr("django_jobchains.children.launcher.start_problem", lambda: "none here")
    with ReusablePool() as pool, ChildSession(pool) as child:
        assert child.level == request.param
        yield child


def test_they_run_in_order(child: PooledChild) -> None:
    calls = child.start_all(STEP, [1, 2, 3])
    assert [call.wait() for call in calls] == [1, 2, 3]
    assert child.jobs == 3
    assert not child.is_busy


def test_those_that_have_not_begun_can_be_withdrawn(child: PooledChild) -> None:
    begun: list[Any] = []
    calls = child.start_all(STEP, ["wait", 2, 3], on_message=begun.append)
    until(lambda: calls[0].wait(0.01) is PENDING and begun)
    child.withdraw()
    assert [call.is_withdrawn for call in calls] == [False, True, True]
    assert child.jobs == 1
    assert child.is_busy
    calls[0].abort("cancelled")
    assert calls[0].wait() == "cancelled"
    assert not child.is_busy


def test_a_child_does_not_run_withdrawn_calls_instead_of_later_ones(child: PooledChild) -> None:
    begun: list[Any] = []
    for _ in range(3):
        calls = child.start_all(STEP, ["wait", "die", "die"], on_message=begun.append)
        until(lambda call=calls[0]: call.wait(0.01) is PENDING and begun)  # type: ignore[misc]
        child.withdraw()
        calls[0].abort("cancelled")
        assert calls[0].wait() == "cancelled"
        begun.clear()
        assert [call.wait() for call in child.start_all(STEP, [4, 5])] == [4, 5]


def test_a_crash_is_that_of_the_call_that_ran() -> None:
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        calls = child.start_all(STEP, [1, "die", 3])
        assert calls[0].wait() == 1
        with pytest.raises(ChildCrashed):
            calls[1].wait()
        child.withdraw()
        assert [call.is_withdrawn for call in calls] == [False, False, True]


def test_they_can_be_withdrawn_while_c_code_holds_the_gil(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        calls = child.start_all(STEP, [[str(marks)], 2])
        until(lambda: pids_in(marks))
        child.withdraw()
        assert [call.is_withdrawn for call in calls] == [False, True]
        calls[0].kill()
        with pytest.raises(ChildCrashed):
            calls[0].wait()


@pytest.mark.parametrize("end", [Call.terminate, Call.kill])
def test_ending_one_that_is_over_does_not_end_the_next(tmp_path: Path, end: Callable[[Call], None]) -> None:
    mark = tmp_path / "mark"
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        over, running, behind = child.start_all(f"{FUNCTIONS}:touch_and_wait", [None, str(mark), None])
        until(mark.exists)
        end(over)  # its reply has not been read
        assert not child.is_signalled
        assert behind.is_withdrawn
        assert over.wait() is None
        running.abort("cancelled")
        assert running.wait() == "cancelled"


def test_the_first_of_many_can_be_killed(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        calls = child.start_all(STEP, [[str(marks)], *range(4000)])
        until(lambda: pids_in(marks))
        calls[0].kill()
        with pytest.raises(ChildCrashed):
            calls[0].wait(30)


def test_more_of_them_than_fit_are_refused_at_once() -> None:
    with ReusablePool(strict=True) as pool, ChildSession(pool) as child:
        with pytest.raises(ValueError, match=r"100000 calls are too many to start at once: start at most \d+"):
            child.start_all(STEP, range(100_000))
        assert child.jobs == 0
        assert child.run(STEP, 1) == 1
