"""Errors raised in a thread of the worker where it calls another component, before and after the call."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

#: The errors in the order in which they are raised. If the second value is true, the error is raised after the call,
#: as when a connection breaks.
ERRORS = (
    (RuntimeError("a bug"), False),
    (SystemExit(3), True),
    (MemoryError(), False),
    (GeneratorExit(), True),
    (OperationalError("the server closed the connection"), False),
    (OperationalError("the answer was lost"), True),
)


class Faults:
    """Errors to raise in the threads whose names start with ``thread``."""

    def __init__(self, thread: str, step: str) -> None:
        self.step = step
        self._thread = f"jobchains-{thread}"
        self._left = list(ERRORS)
        self._lock = threading.Lock()
        #: Set when all errors have been raised.
        self.all_thrown = threading.Event()

    def __repr__(self) -> str:
        return f"{self._thread} {self.step}: not thrown: {self._left}"

    def throw_in(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make each call of ``owner.name`` by the threads fail, until all errors have been raised."""
        function = getattr(owner, name)

        def fails(*args: Any, **kwargs: Any) -> Any:
            return self._call(function, *args, **kwargs)

        monkeypatch.setattr(owner, name, fails)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        error, is_late = self._next()
        if error is None:
            return function(*args, **kwargs)
        if is_late:
            function(*args, **kwargs)
        raise error

    def _next(self) -> tuple[BaseException | None, bool]:
        if not threading.current_thread().name.startswith(self._thread):
            return None, False
        with self._lock:
            if not self._left:
                return None, False
            if len(self._left) == 1:
                self.all_thrown.set()
            return self._left.pop(0)
