"""Waits for what other threads and processes do: a condition with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

LOOK_SECONDS = 0.01
#: What a contract waits for has come by then, or does not.
DEADLINE_SECONDS = 15.0


def until(condition: Callable[[], Value], seconds: float | None = None, what: object = "the condition") -> Value:
    """The condition's value as soon as it is true. ``what``: said when it is not in time, called if it can be."""
    seconds = DEADLINE_SECONDS if seconds is None else seconds
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not true within {seconds} s: {what() if callable(what) else what}")
        time.sleep(LOOK_SECONDS)
    return value


def stays(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition holds at every look for so long: for what must *not* happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(LOOK_SECONDS)
    return True
