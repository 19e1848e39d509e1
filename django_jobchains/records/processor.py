"""The class that handles the records of a model, with its hooks."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any, Generic, TypeVar

from asgiref.sync import iscoroutinefunction
from django.db.models import Model, Q

from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.functions import is_async_function, plain_function
from django_jobchains.records.run import RecordRun

RecordT = TypeVar("RecordT", bound=Model)

HOOKS = ("pre_dequeue", "pre_handle", "post_handle")


class RecordProcessor(ABC, Generic[RecordT]):
    """Handles records of a model. Only ``handle`` is required.

    A worker process creates one object, unless an instance is registered. Several threads call its methods. No
    transaction is open when they are called. ``handle`` may be an ``async def`` method; the hooks are plain methods,
    which never run on the event loop. With isolation in child processes, ``handle`` runs in a child, which has its own
    object, and the hooks in the worker.
    """

    def pre_dequeue(self) -> Q | bool:
        """Return whether to dequeue a record now, or a condition that the record must meet, such as a budget."""
        return True

    def pre_handle(self, record: RecordT) -> None:
        """Called with each dequeued record, before the next ``pre_dequeue``. The attempt ends with its error."""

    @abstractmethod
    def handle(self, record: RecordT, run: RecordRun[Any]) -> Awaitable[None] | None:
        """Do the work. The record is completed when this returns."""

    def post_handle(self, record: RecordT) -> None:
        """Called after the new state of the record was written, for any result. An error is only logged."""


class FunctionProcessor(RecordProcessor[Any]):
    """The processor of a plain function ``handle(record, run)``."""

    def __init__(self, function: Callable[[Any, RecordRun[Any]], object]) -> None:
        self.function = function

    def handle(self, record: Any, run: RecordRun[Any]) -> Any:
        return self.function(record, run)


def handler_of(processor: RecordProcessor[Any]) -> Callable[..., Any]:
    return processor.function if isinstance(processor, FunctionProcessor) else processor.handle


def is_async(processor: RecordProcessor[Any]) -> bool:
    """Return whether the handler is an ``async def`` function."""
    return is_async_function(handler_of(processor))


def hooks_of(processor: RecordProcessor[Any]) -> frozenset[str]:
    """Return the names of the hooks that a processor defines itself."""
    kind, own = type(processor), vars(processor)
    return frozenset(name for name in HOOKS if name in own or getattr(kind, name) is not getattr(RecordProcessor, name))


def make_processor(given: Any) -> RecordProcessor[Any]:
    """Return the processor for a class, an instance or a function; raise ``RegistryError`` for anything else."""
    processor = _make_object(given) if isinstance(given, type) else given
    if isinstance(processor, RecordProcessor):
        _check_handler(processor.handle)
        _check_hook(processor.pre_dequeue)
        _check_hook(processor.pre_handle, "record")
        _check_hook(processor.post_handle, "record")
        return processor
    if not callable(given):
        raise RegistryError(f"{given!r} is neither a RecordProcessor nor a function handle(record, run).")
    _check_handler(given)
    return FunctionProcessor(given)


def _make_object(kind: type) -> RecordProcessor[Any]:
    if not issubclass(kind, RecordProcessor):
        raise RegistryError(f"{kind.__qualname__} is not a subclass of RecordProcessor.")
    if missing := getattr(kind, "__abstractmethods__", None):
        raise RegistryError(f"{kind.__qualname__} does not define {', '.join(sorted(missing))}(self, record, run).")
    try:
        return kind()
    except TypeError as error:
        raise RegistryError(f"{kind.__qualname__} must be callable without arguments: {error}.") from error


def _check_handler(function: Callable[..., Any]) -> None:
    is_async_function(function)  # may raise
    _check_arguments(function, "record", "run")


def _check_hook(method: Callable[..., Any], *arguments: str) -> None:
    if iscoroutinefunction(method):
        raise RegistryError(f"{method.__qualname__} is an 'async def' function: hooks are plain functions.")
    _check_arguments(method, *arguments)


def _check_arguments(method: Callable[..., Any], *arguments: str) -> None:
    try:
        signature(method).bind(*arguments)
    except TypeError:
        expected = ", ".join(arguments) or "no arguments"
        raise RegistryError(f"{plain_function(method).__qualname__} must take ({expected}).") from None
