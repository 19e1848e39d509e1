"""How long the library's own transactions take, and whether they fail."""

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import OperationEnded

_NOTHING: AbstractContextManager[None] = nullcontext()


def measured(operation: str, worker: str) -> AbstractContextManager[object]:
    """Report an ``OperationEnded`` after the block, if any sink receives it."""
    return _Measured(operation, worker) if observes(OperationEnded) else _NOTHING


class _Measured:
    def __init__(self, operation: str, worker: str) -> None:
        self._operation = operation
        self._worker = worker

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        error_type = type_.__qualname__ if type_ else ""
        report(OperationEnded(self._worker, self._operation, time.perf_counter() - self._started, error_type))
