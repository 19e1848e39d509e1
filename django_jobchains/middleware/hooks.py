"""The hooks of a middleware, and the onion that those of a slice make around a handler and its phases."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

from django_jobchains.exceptions import RegistryError
from django_jobchains.running import RunningJob

Hook = Literal["around_handler", "around_prepare", "around_complete"]

_NOTHING: AbstractContextManager[None] = nullcontext()


class Middleware:
    """Code around the handlers of a slice. Override the hooks you need, decorated with ``@contextmanager``.

    One instance serves all threads of a process at once: what belongs to one attempt goes into ``job.context`` or into
    local variables. ``job`` is a ``RunningJob``. An error of the handler, or of a middleware further in, arrives at the
    ``yield``: it may be replaced by another. Swallowing it completes nothing: the attempt fails all the same. An error
    that a hook raises, before or after the ``yield``, is one of the handler.
    """

    def around_handler(self, job: RunningJob[Any]) -> AbstractContextManager[object]:
        """Around the handler, on the thread that runs it (of an ``async def`` handler: on the event loop, so do not
        block). ``job.input`` is decoded. No transaction is open before the ``yield``; after it that of
        ``job.complete()``, if the handler used it, which is committed when all middleware is through."""
        return nullcontext()

    def around_prepare(self, job: RunningJob[Any]) -> AbstractContextManager[object]:
        """Around the block of ``job.prepare()``, inside its transaction, on the thread of that; the job's row is
        locked. With ``mode="atomic"`` of ``register`` the block is the whole handler."""
        return nullcontext()

    def around_complete(self, job: RunningJob[Any]) -> AbstractContextManager[object]:
        """Around the block of ``job.complete()``, inside its transaction, on the thread of that; the job's row is
        locked. It is not called for a handler that just returns."""
        return nullcontext()


def around(middleware: tuple[Middleware, ...], hook: Hook, job: RunningJob[Any]) -> AbstractContextManager[object]:
    """One hook of every middleware, the first outermost. Without middleware it costs next to nothing."""
    return _onion(middleware, hook, job) if middleware else _NOTHING


@contextmanager
def _onion(middleware: tuple[Middleware, ...], hook: Hook, job: RunningJob[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in middleware:
            stack.enter_context(_layer(part, hook, job))
        yield


@contextmanager
def _layer(part: Middleware, hook: Hook, job: RunningJob[Any]) -> Iterator[None]:
    """A middleware that swallows an error hides it neither from those around it nor from the attempt."""
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
    """The middleware of a slice; raises ``RegistryError`` for what is none."""
    if isinstance(given, Middleware) or not isinstance(given, Iterable):
        raise RegistryError(f"middleware={given!r}: give a list, the outermost first: middleware=[LogContext()].")
    parts = tuple(given)
    for part in parts:
        if isinstance(part, type):
            raise RegistryError(f"middleware holds the class {part.__name__}: give an instance, {part.__name__}().")
        if not isinstance(part, Middleware):
            raise RegistryError(f"{part!r} is no middleware: subclass django_jobchains.middleware.Middleware.")
    return parts
