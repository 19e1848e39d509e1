"""Calls at the same time, and waits for other threads and processes."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from django.db import connections

Value = TypeVar("Value")

#: After this time, a call or a condition counts as failed.
DEADLINE_SECONDS = 30.0
#: How often a condition is checked.
CHECK_SECONDS = 0.01


def at_once(calls: Sequence[Callable[[], Value]]) -> list[Value]:
    """Make the calls at the same time. Return their results, or raise the first error."""
    barrier = threading.Barrier(len(calls))
    futures: list[Future[Value]] = [Future() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        threading.Thread(target=_run, args=(call, future, barrier), name="contract", daemon=True).start()
    return [future.result(DEADLINE_SECONDS) for future in futures]


def _run(call: Callable[[], Value], future: "Future[Value]", barrier: threading.Barrier) -> None:
    try:
        barrier.wait(DEADLINE_SECONDS)
        value = call()
    except BaseException as error:
        connections.close_all()
        future.set_exception(error)
    else:
        connections.close_all()
        future.set_result(value)


def until(condition: Callable[[], Value], seconds: float | None = None, what: object = "the condition") -> Value:
    """Return the value of the condition as soon as it is true. ``what``, or its result, is shown if it stays false."""
    seconds = DEADLINE_SECONDS if seconds is None else seconds
    deadline, is_over = time.monotonic() + seconds, False
    while not (value := condition()):
        if is_over:
            raise AssertionError(f"Not true within {seconds} s: {what() if callable(what) else what}")
        time.sleep(CHECK_SECONDS)
        is_over = time.monotonic() > deadline  # This thread may have been delayed itself, so it checks once more.
    return value


def stays(condition: Callable[[], object], seconds: float) -> bool:
    """Return whether the condition is true at every check for this time, to show that something does not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(CHECK_SECONDS)
    return True
