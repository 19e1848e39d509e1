"""The hooks of middleware, nested around a handler and its phases, and the middleware that workers require."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from inspect import isasyncgenfunction, iscoroutinefunction, unwrap
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args, get_origin

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.running_job import HasContext, RunningJob
from django_jobchains.text.humanize import sentence

Hook = Literal["around_handler", "aaround_handler", "around_prepare", "around_complete"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ProvidedT_co = TypeVar("ProvidedT_co", default=None, covariant=True)
else:
    from typing import TypeVar

    ProvidedT_co = TypeVar("ProvidedT_co", covariant=True)

ContextT = TypeVar("ContextT")
AnyContextManager = AbstractContextManager[ProvidedT_co] | AbstractAsyncContextManager[ProvidedT_co]

_NOTHING: Any = nullcontext()


class Middleware(Generic[ProvidedT_co]):
    """The base class of middleware. Override the hooks that you need, decorated with ``@contextmanager``.

    ``class Tenants(Middleware[Tenant])`` provides context: handlers and later middleware read the value that its
    ``around_handler`` yields with ``Tenants.of(job)``. Handlers declare that they need it, as in
    ``RunningJob[Order, Any, Tenant]``. One instance serves all threads of a process, so keep the state of an attempt in
    ``job.context`` or in local variables. ``job`` is a ``RunningJob``, a ``Batch``, or a ``RecordRun``, which has no
    ``input``. An error of the handler, or of inner middleware, is raised at the ``yield``. A hook may replace it with
    another error, but not swallow it: the attempt still fails. An error that a hook raises, before or after the
    ``yield``, counts as an error of the handler.
    """

    #: The class of the context: the type in ``Middleware[…]``.
    provides: type | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            if get_origin(base) is Middleware:
                [given] = get_args(base)
                if isinstance(given, type):
                    cls.provides = None if given is NoneType else given
                elif not isinstance(given, TypeVar):
                    raise RegistryError(
                        f"{cls.__qualname__}: Middleware[{given!r}] takes a class, such as a dataclass."
                    )

    @classmethod
    def of(cls: "type[Middleware[ContextT]]", job: HasContext[ContextT]) -> ContextT:
        """Return the context that this middleware has provided for a job.

        ``job`` may also be a ``Batch`` or a ``RecordRun``. Another middleware class that provides a context of the same
        class may have provided it. Raises ``LookupError`` if no middleware has.
        """
        kind: Any = cls.provides
        if kind in job.provided:
            return job.provided[kind]  # type: ignore[no-any-return]
        name = kind and kind.__qualname__
        raise LookupError(f"No middleware has provided a {name}: annotate what needs it with RunningJob[…, …, {name}].")

    def around_handler(self, job: RunningJob[Any, Any, Any]) -> AnyContextManager[ProvidedT_co]:
        """Wrap the handler, in its thread. An ``async def`` handler is wrapped on its event loop.

        With ``@asynccontextmanager``, the hook is for ``async def`` handlers, and may use ``await``, for example with
        Django's async ORM. A plain hook must not block the event loop, where Django does not allow queries. In a class
        with both, the async hook is ``aaround_handler``. A slice with a plain handler does not accept middleware that
        has only an async hook.

        ``job.input`` is decoded. No transaction is open before the ``yield``. After it, the transaction of
        ``job.complete()`` is open if the handler used it, or if middleware has ``around_complete``; it is committed
        after all middleware has returned.
        """
        return _NOTHING  # type: ignore[no-any-return]

    def aaround_handler(self, job: RunningJob[Any, Any, Any]) -> AnyContextManager[ProvidedT_co]:
        """``around_handler`` for ``async def`` handlers."""
        return self.around_handler(job)

    def around_prepare(self, job: RunningJob[Any, Any, Any]) -> AbstractContextManager[object]:
        """Wrap the block of ``job.prepare()``, inside its transaction and in its thread. The job row is locked.

        With ``mode="atomic"``, the block is the whole handler.
        """
        return nullcontext()

    def around_complete(self, job: RunningJob[Any, Any, Any]) -> AbstractContextManager[object]:
        """Wrap the block of ``job.complete()``, inside its transaction and in its thread. The job row is locked.

        A handler that returns without calling ``job.complete()`` ends as if its last line were
        ``with job.complete(): pass``.
        """
        return nullcontext()


def around(
    middleware: tuple[Middleware[Any], ...], hook: Hook, job: RunningJob[Any, Any, Any]
) -> AbstractContextManager[object]:
    """Return a context manager that enters this hook of all middleware, the first outermost."""
    return _nested(middleware, hook, job) if middleware else _NOTHING


def aaround(
    middleware: tuple[Middleware[Any], ...], job: RunningJob[Any, Any, Any]
) -> AbstractAsyncContextManager[object]:
    """``around`` for an ``async def`` handler."""
    return _anested(middleware, job) if middleware else _NOTHING


def defines(middleware: Iterable[Middleware[Any]], hook: Hook) -> bool:
    """Return whether one of these has the hook, and not only the default that does nothing."""
    return any(getattr(type(part), hook) is not getattr(Middleware, hook) for part in middleware)


@contextmanager
def _nested(middleware: tuple[Middleware[Any], ...], hook: Hook, job: RunningJob[Any, Any, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for part in middleware:
            watch = stack.enter_context(_Watch(part, hook))
            value = stack.enter_context(watch.checked(getattr(part, hook)(job)))
            stack.enter_context(watch)
            if hook == "around_handler":
                _provide(part, value, job)
        yield


@asynccontextmanager
async def _anested(middleware: tuple[Middleware[Any], ...], job: RunningJob[Any, Any, Any]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for part in middleware:
            watch = stack.enter_context(_Watch(part, "aaround_handler"))
            manager = part.aaround_handler(job)
            if isinstance(manager, AbstractAsyncContextManager):
                value = await stack.enter_async_context(manager)
            else:
                value = stack.enter_context(watch.checked(manager))
            stack.enter_context(watch)
            _provide(part, value, job)
        yield


def _provide(part: Middleware[Any], value: object, job: RunningJob[Any]) -> None:
    if part.provides is None:
        return
    if not isinstance(value, part.provides):
        raise TypeError(
            f"{type(part).__qualname__} provides a {part.provides.__qualname__}, but its hook yielded a "
            f"{type(value).__qualname__}."
        )
    job.provided = {**job.provided, part.provides: value}


class _Watch:
    """Raises the error of a block again if a hook swallows it. Entered twice: outside of the hook, and inside."""

    def __init__(self, part: Middleware[Any], hook: Hook) -> None:
        self._name = f"{type(part).__qualname__}.{hook}()"
        self._error: BaseException | None = None

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None and self._error is not None:
            self._error.add_note(f"{self._name} swallowed this error. It may raise another, but not undo one.")
            raise self._error
        self._error = error

    def checked(self, manager: Any) -> AbstractContextManager[object]:
        """Return what a hook has returned; raise ``TypeError`` if it is not a context manager."""
        if isinstance(manager, AbstractContextManager):
            return manager
        kind = type(manager).__name__
        raise TypeError(
            f"{self._name} returned a {kind}, not a context manager: is @contextmanager missing? "
            "(@asynccontextmanager is for around_handler() of 'async def' handlers.)"
        )


def checked_middleware(given: Iterable[Middleware[Any]]) -> tuple[Middleware[Any], ...]:
    """Return the middleware of a slice; raise ``RegistryError`` for other objects."""
    if isinstance(given, Middleware) or not isinstance(given, Iterable):
        raise RegistryError(f"middleware={given!r}: give a list, the outermost first: middleware=[LogContext()].")
    parts = tuple(given)
    for part in parts:
        if isinstance(part, type):
            raise RegistryError(f"middleware holds the class {part.__name__}: give an instance, {part.__name__}().")
        if not isinstance(part, Middleware):
            raise RegistryError(f"{part!r} is not middleware: subclass django_jobchains.middleware.Middleware.")
        for hook in (part.around_prepare, part.around_complete):
            if _is_async(hook):
                raise RegistryError(f"{hook.__qualname__}() is async, but runs in a transaction: use @contextmanager.")
    return parts


def check_hooks(middleware: Iterable[Middleware[Any]], *, is_async: bool) -> None:
    """Raise ``RegistryError`` if middleware would not wrap a handler of this kind."""
    for part in middleware:
        hook: Hook = "aaround_handler" if defines([part], "aaround_handler") else "around_handler"
        is_plain = defines([part], "around_handler") and not _is_async(part.around_handler)
        if not is_async and not is_plain and defines([part], hook):
            raise RegistryError(
                f"{type(part).__qualname__}.{hook}() is for 'async def' handlers, and this one is a plain function. "
                "Define around_handler() with @contextmanager too, and name the async one aaround_handler()."
            )


def _is_async(hook: Callable[..., Any]) -> bool:
    function = unwrap(hook)  # without @asynccontextmanager
    return isasyncgenfunction(function) or iscoroutinefunction(function)


# Required middleware: workers refuse to run a slice without it, such as a slice that lacks the tenant check


def required_middleware(more: Iterable[type[Middleware[Any]] | str] = ()) -> tuple[type[Middleware[Any]], ...]:
    """Return the classes in ``JOBCHAINS["REQUIRED_MIDDLEWARE"]`` and ``more``; raise ``ImproperlyConfigured``."""
    return tuple(dict.fromkeys(_kind(given) for given in (*_many(get_settings().REQUIRED_MIDDLEWARE), *_many(more))))


def middleware_problem(given: Iterable[Middleware[Any]], required: Sequence[type[Middleware[Any]]]) -> str:
    """Return what is wrong with the middleware of a slice, or "".

    It has an instance of each required class, or of a subclass, in the required order. Other middleware may be
    anywhere in the list.
    """
    parts = list(given)
    if lacks := [kind for kind in required if not any(isinstance(part, kind) for part in parts)]:
        return f"lacks {_names(lacks)}"
    for kind in required:
        while parts and not isinstance(parts[0], kind):
            parts.pop(0)
    return "" if parts or not required else f"has it in another order than {_names(required)}"


def _names(kinds: Iterable[type[Middleware[Any]]]) -> str:
    return ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def _many(given: Any) -> Iterable[Any]:
    if isinstance(given, str | type) or not isinstance(given, Iterable):
        raise ImproperlyConfigured(f"Required middleware is a list of classes or dotted paths, not {given!r}.")
    return given


def _kind(given: Any) -> type[Middleware[Any]]:
    kind: Any = given
    if isinstance(given, str):
        try:
            kind = import_string(given)
        except ImportError as error:
            raise ImproperlyConfigured(
                sentence(f"Required middleware {given!r} cannot be imported: {error}")
            ) from error
    if not (isinstance(kind, type) and issubclass(kind, Middleware)):
        raise ImproperlyConfigured(f"Required middleware {given!r} is not a subclass of Middleware.")
    return kind
