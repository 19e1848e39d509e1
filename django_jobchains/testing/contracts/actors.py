"""Calls on connections of their own, stepped by a test."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from django.db import connections, transaction

#: Nothing a store is asked for takes as long: whoever does waits for ever.
DEADLINE_SECONDS = 15.0
#: Who is not through after it waits for a lock. A machine that is slower makes the test easier, and not red.
SETTLED_SECONDS = 0.1


class Actor:
    """Makes a call on a thread and a connection of its own, from ``start()`` on.

    ``holds``: it stops after the call, before the commit, until ``go_on()`` or ``result()``.
    """

    def __init__(self, using: str, call: Callable[[], Any], *, holds: bool = False) -> None:
        self._using = using
        self._call = call
        self._holds = holds
        self._rolls_back = False
        self._stopped = threading.Event()
        self._released = threading.Event()
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="actor", daemon=True)

    def start(self) -> "Actor":
        self._thread.start()
        return self

    def until_stopped(self) -> "Actor":
        """It has made its call, or has failed."""
        assert self._stopped.wait(DEADLINE_SECONDS), "The call hangs: it waits for a lock."
        return self

    def until_settled(self) -> "Actor":
        """It waits for somebody's lock, or did not have to."""
        self._ended.wait(SETTLED_SECONDS)
        return self

    def go_on(self, *, roll_back: bool = False) -> None:
        self._rolls_back = roll_back
        self._released.set()

    def result(self) -> Any:
        """What the call returned; raises what it raised."""
        self._released.set()
        assert self._ended.wait(DEADLINE_SECONDS), "The call hangs: it waits for a lock."
        if self._error is not None:
            raise self._error
        return self._result

    def end(self) -> None:
        """Whatever a failed test left standing."""
        self._rolls_back = True
        self._released.set()
        self._ended.wait(DEADLINE_SECONDS)

    def _run(self) -> None:
        try:
            with transaction.atomic(using=self._using) if self._holds else nullcontext():
                self._result = self._call()
                if self._holds:
                    self._stopped.set()
                    assert self._released.wait(4 * DEADLINE_SECONDS), "The test did not let the actor go on."
                    transaction.set_rollback(self._rolls_back, using=self._using)
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()
            self._ended.set()
            self._stopped.set()
