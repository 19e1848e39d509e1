"""How long the library's own transactions take, and whether they fail."""

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import CodecFailed, OperationEnded
from django_jobchains.text.errors import type_name

_NOTHING: AbstractContextManager[None] = nullcontext()


def measured(operation: str, worker: str, type_name: str = "") -> AbstractContextManager[object]:
    """Report an ``OperationEnded`` after the block, if any sink receives it. ``type_name``: of a record worker."""
    return _Measured(operation, worker, type_name) if observes(OperationEnded) else _NOTHING


def codec_failed(operation: str, error: Exception) -> None:
    """Report that the payload codec failed, if any sink receives it."""
    if observes(CodecFailed):
        report(CodecFailed("", operation, type_name(error)))


class _Measured:
    def __init__(self, operation: str, worker: str, type_name: str) -> None:
        self._operation = operation
        self._worker = worker
        self._type_name = type_name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        error_type = type_.__qualname__ if type_ else ""
        seconds = time.perf_counter() - self._started
        report(OperationEnded(self._worker, self._operation, seconds, error_type, self._type_name))
