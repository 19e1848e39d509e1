"""The hooks of middleware, nested around a handler and its phases."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.running_job import RunningJob

Hook = Literal["around_handler", "around_prepare", "around_complete"]

_NOTHING: AbstractContextManager[None] = nullcontext()


class Middleware:
    """Code around the handlers of a slice. Override the hooks you need, decorated with ``@contextmanager``.

    One instance serves all threads of a process: keep the state of an attempt in ``job.context`` or in local variables.
    ``job`` is a ``RunningJob``, a ``Batch``, or for a record its ``RecordRun``, which has no ``input``. An error of the
    handler, or of inner middleware, is raised at the ``yield``. A hook may replace it with another error, but not
    swallow it: the attempt still fails. An error that a hook raises, before or after the ``yield``, counts as an error
    of the handler.
    """

    def around_handler(self, job: RunningJob[Any]) -> AbstractContextManager[object]:
        """Wrap the handler, on its thread, or on the event loop of an ``async def`` handler, where it must not block.

        ``job.input`` is decoded. No transaction is open before the ``yield``. After it, the transaction of
        ``job.complete()`` is open if the handler used it, or if middleware has ``around_complete``; it is committed
        after all middleware has returned.
        """
        return nullcontext()

    def around_prepare(self, job: RunningJob[Any]) -> AbstractContextManager[object]:
        """Wrap the block of ``job.prepare()``, inside its transaction, on its thread. The job row is locked.

        With ``mode="atomic"``, the block is the whole handler.
        """
        return nullcontext()

    def around_complete(self, job: RunningJob[Any]) -> AbstractContextManager[object]:
        """Wrap the block of ``job.complete()``, inside its transaction, on its thread. The job row is locked.

        A handler that returns without ``job.complete()`` ends as if its last line was ``with job.complete(): pass``.
        """
        return nullcontext()


def around(middleware: tuple[Middleware, ...], hook: Hook, job: RunningJob[Any]) -> AbstractContextManager[object]:
    """Return a context manager that enters this hook of all middleware, the first outermost."""
    return _nested(middleware, hook, job) if middleware else _NOTHING


def defines(middleware: Iterable[Middleware], hook: Hook) -> bool:
    """Return whether one of these has the hook, and not only the default that does nothing."""
    return any(getattr(type(part), hook) is not getattr(Middleware, hook) for part in middleware)


@contextmanager
def _nested(middleware: tuple[Middleware, ...], hook: Hook, job: RunningJob[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in middleware:
            stack.enter_context(_layer(part, hook, job))
        yield


@contextmanager
def _layer(part: Middleware, hook: Hook, job: RunningJob[Any]) -> Iterator[None]:
    """Enter one hook, and raise the error of the block again if the hook swallows it."""
    error: BaseException | None = None
    with _entered(part, hook, job):
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
    if error is not None:
        error.add_note(f"{_name(part, hook)} swallowed this error. It may raise another, but not undo one.")
        raise error


def _entered(part: Middleware, hook: Hook, job: RunningJob[Any]) -> AbstractContextManager[object]:
    manager = getattr(part, hook)(job)
    if not hasattr(type(manager), "__exit__"):
        kind = type(manager).__name__
        raise TypeError(f"{_name(part, hook)} returned a {kind}, not a context manager: is @contextmanager missing?")
    return manager  # type: ignore[no-any-return]


def _name(part: Middleware, hook: Hook) -> str:
    return f"{type(part).__qualname__}.{hook}()"


def checked_middleware(given: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return the middleware of a slice; raise ``RegistryError`` for other objects."""
    if isinstance(given, Middleware) or not isinstance(given, Iterable):
        raise RegistryError(f"middleware={given!r}: give a list, the outermost first: middleware=[LogContext()].")
    parts = tuple(given)
    for part in parts:
        if isinstance(part, type):
            raise RegistryError(f"middleware holds the class {part.__name__}: give an instance, {part.__name__}().")
        if not isinstance(part, Middleware):
            raise RegistryError(f"{part!r} is not middleware: subclass django_jobchains.middleware.Middleware.")
    return parts
