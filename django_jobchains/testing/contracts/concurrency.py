"""Calls on other connections, in steps or at the same time, and waits for other threads and processes."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any, Self, TypeVar

from django.db import connections, transaction

Value = TypeVar("Value")

#: After this time, a call or a condition counts as failed.
DEADLINE_SECONDS = 30.0
#: If the database does not report lock waits, a call that has not returned after this time is assumed to wait for a
#: lock. On a slow machine, tests become weaker but do not fail.
BLOCKED_SECONDS = 0.1
#: How often a condition is checked.
CHECK_SECONDS = 0.01


class Actor:
    """Makes a call on a separate thread and connection, which ``start()`` starts.

    With ``holds``, it waits after the call until ``go_on()`` or ``result()``, and then commits.
    """

    def __init__(self, using: str, call: Callable[[], Any], *, holds: bool = False) -> None:
        self._using = using
        self._call = call
        self._holds = holds
        self._rolls_back = False
        #: The call's process of the PostgreSQL server.
        self._pid: int | None = None
        self._begun = threading.Event()
        self._stopped = threading.Event()
        self._released = threading.Event()
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def until_stopped(self) -> Self:
        """Wait until it has made its call, or has failed."""
        assert self._stopped.wait(DEADLINE_SECONDS), "The call does not return. It may wait for a lock."
        return self

    def until_blocked_or_ended(self) -> Self:
        """Wait until the call waits for a lock, or has returned."""
        assert self._begun.wait(DEADLINE_SECONDS), "The call does not begin."
        if self._pid is None:
            self._ended.wait(BLOCKED_SECONDS)
        else:
            until(lambda: self._ended.is_set() or self._is_blocked(), what="the call waits for a lock, or has returned")
        return self

    def go_on(self, *, roll_back: bool = False) -> None:
        self._rolls_back = roll_back
        self._released.set()

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        self._released.set()
        assert self._ended.wait(DEADLINE_SECONDS), "The call hangs: it waits for a lock."
        if self._error is not None:
            raise self._error
        return self._result

    def end(self) -> None:
        """End the call, even after a failed test."""
        self._rolls_back = True
        self._released.set()
        self._ended.wait(DEADLINE_SECONDS)

    def _run(self) -> None:
        try:
            self._make_call()
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()
            self._ended.set()
            self._begun.set()
            self._stopped.set()

    def _prepare(self) -> None:
        """Read what ``_is_blocked`` needs, on the connection of the call."""
        if connections[self._using].vendor == "postgresql":
            with connections[self._using].cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                [self._pid] = cursor.fetchone()

    def _is_blocked(self) -> bool:
        with connections[self._using].cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [self._pid])
            return bool(cursor.fetchone()[0])

    def _make_call(self) -> None:
        self._prepare()
        self._begun.set()
        with transaction.atomic(using=self._using) if self._holds else nullcontext():
            self._result = self._call()
            if self._holds:
                self._stop()
                transaction.set_rollback(self._rolls_back, using=self._using)

    def _stop(self) -> None:
        self._stopped.set()
        assert self._released.wait(2 * DEADLINE_SECONDS), "The test did not let the actor go on."


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
