"""Errors thrown into a thread of the worker where it calls another part, before the call and after it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

#: In this order; the second of a pair comes when the call was made already, as from a connection that broke.
ERRORS = (
    (RuntimeError("a bug"), False),
    (SystemExit(3), True),
    (MemoryError(), False),
    (GeneratorExit(), True),
    (OperationalError("the server closed the connection"), False),
    (OperationalError("the answer was lost"), True),
)


class Faults:
    """``thread``: the beginning of the name of the threads that fail."""

    def __init__(self, thread: str, step: str) -> None:
        self.step = step
        self._thread = f"jobchains-{thread}"
        self._left = list(ERRORS)
        self._lock = threading.Lock()
        #: Set when each error was thrown.
        self.all_thrown = threading.Event()

    def __repr__(self) -> str:
        return f"{self._thread} {self.step}: not thrown: {self._left}"

    def throw_in(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each call of ``owner.name`` by the thread fails, until there is no error left."""
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
