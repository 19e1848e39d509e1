"""Job types, the functions that handle them, and the registry that knows them all.

An app declares its slice in a ``jobs`` module: ``processors = Processors()`` and ``@processors.register("shop.ship")``.
The modules are found when the apps are ready. The registry is ``apps.get_app_config("django_jobchains").registry``.
"""

import inspect
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

from asgiref.sync import iscoroutinefunction
from django.apps import AppConfig, apps
from django.utils.module_loading import module_has_submodule

from django_jobchains.batches import Batch, BatchJob
from django_jobchains.deduplication import Deduplicate
from django_jobchains.exceptions import (
    DuplicateJobType,
    FailJob,
    JobTypeNotFound,
    ProcessorNotFound,
    RegistryError,
    RescheduleJob,
)
from django_jobchains.job_types import (
    _ANY,
    AsyncJobType,
    Item,
    JobType,
    OnBlockerFailure,
    check_choice,
    checked_name,
    checked_priority,
    checked_queue,
    declaring,
    first_annotation,
    name_of,
    plain_function,
)
from django_jobchains.middleware.hooks import Middleware, checked_middleware
from django_jobchains.middleware.required import described, lacking
from django_jobchains.policies import (
    Backoff,
    FailOn,
    Lease,
    Policy,
    Retention,
    RetryRule,
    fail_on_of,
    lease_of,
)
from django_jobchains.running import AbortSignal, Continuation, RunningJob

if TYPE_CHECKING:
    from django_jobchains.apps import JobchainsConfig

__all__ = (
    "AbortSignal",
    "AsyncJobType",
    "Backoff",
    "Batch",
    "BatchJob",
    "Continuation",
    "Deduplicate",
    "FailJob",
    "Item",
    "JobType",
    "Lease",
    "Processor",
    "Processors",
    "Registry",
    "RescheduleJob",
    "Retention",
    "RunningJob",
    "get_registry",
)

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")

HandlerMode = Literal["staged", "atomic"]


@dataclass(frozen=True)
class Processor:
    """The function that handles a job type, with its policy: its own first, then its slice's."""

    job_type: JobType[Any, Any]
    function: Callable[[Any], Any]
    mode: HandlerMode
    policies: tuple[Policy, Policy]
    retry: RetryRule
    queue: str | None
    priority: int | None
    #: The most jobs its function takes at once, as a ``Batch``; None: one, as a ``RunningJob``.
    batch_limit: int | None = None
    middleware: tuple[Middleware, ...] = ()
    #: Runs on the worker's event loop.
    is_async: bool = False


class RegisterOptions(TypedDict, total=False):
    """The keyword arguments of ``Processors.register``."""

    input: Any
    output: Any
    entry: bool
    continues_with: Iterable[str | JobType[Any, Any]] | None
    blockers: Iterable[str | JobType[Any, Any]] | None
    on_blocker_failure: OnBlockerFailure
    mode: HandlerMode
    backoff: Backoff | None
    lease: Lease | timedelta | float | None
    max_attempts: int | None
    timeout: timedelta | float | None
    retention: Retention | None
    batch_limit: int | None
    retry_if: Callable[[BaseException], bool] | None
    fail_on: FailOn
    queue: str | None
    priority: int | None


class Registration(Protocol):
    """What ``register`` returns for a new type: it makes a function of one of these kinds its processor."""

    @overload
    def __call__(self, function: Callable[[Batch[InputT]], None], /) -> JobType[InputT, Any]: ...

    @overload
    def __call__(
        self, function: Callable[[RunningJob[InputT]], Coroutine[Any, Any, OutputT | Continuation]], /
    ) -> AsyncJobType[InputT, OutputT]: ...

    @overload
    def __call__(
        self, function: Callable[[RunningJob[InputT]], OutputT | Continuation], /
    ) -> JobType[InputT, OutputT]: ...


class Processors:
    """One slice of the project's processors; what it sets holds for its processors unless they say otherwise."""

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        lease: Lease | timedelta | float | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | float | None = None,
        retention: Retention | None = None,
        queue: str | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        try:
            self.policy = Policy(backoff, lease_of(lease), max_attempts, timeout, retention)
            self.queue = queue if queue is None else checked_queue(queue)
        except (TypeError, ValueError) as error:
            raise RegistryError(f"Processors(): {error}") from error
        #: The first is outermost.
        self.middleware = checked_middleware(middleware)
        self.by_name: dict[str, Processor] = {}
        #: ``module.variable``, when autodiscovery found it there.
        self.found_as = ""

    @property
    def name(self) -> str:
        """What people call it: where it was found, or else its types."""
        return self.found_as or f"the slice with {', '.join(sorted(self.by_name)) or 'no types'}"

    def __iter__(self) -> Iterator[Processor]:
        return iter(self.by_name.values())

    @overload
    def register(self, name: str, **options: Unpack[RegisterOptions]) -> "Registration": ...

    @overload
    def register(
        self, name: JobType[InputT, OutputT], **options: Unpack[RegisterOptions]
    ) -> Callable[
        [Callable[[RunningJob[InputT]], Any] | Callable[[Batch[InputT]], None]], JobType[InputT, OutputT]
    ]: ...

    def register(
        self,
        name: Any,
        *,
        input: Any = _ANY,
        output: Any = _ANY,
        entry: bool = True,
        continues_with: Iterable[str | JobType[Any, Any]] | None = None,
        blockers: Iterable[str | JobType[Any, Any]] | None = None,
        on_blocker_failure: OnBlockerFailure = "wait",
        mode: HandlerMode = "staged",
        backoff: Backoff | None = None,
        lease: Lease | timedelta | float | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | float | None = None,
        retention: Retention | None = None,
        batch_limit: int | None = None,
        retry_if: Callable[[BaseException], bool] | None = None,
        fail_on: FailOn = (),
        queue: str | None = None,
        priority: int | None = None,
    ) -> Any:
        """Registers the decorated function as the processor of a job type, and returns that type.

        ``name`` is the name of a new type (input and output from the annotations, or ``input=`` and ``output=``), or a
        declared ``JobType``. ``mode="atomic"`` runs the whole handler in the completion transaction. After
        ``timeout``, a timedelta or seconds, ``job.signal`` says ``timed_out``. ``retention``: how long chains that
        start with this type are kept. With ``batch_limit`` the function takes a ``Batch`` of up to so many jobs.
        ``fail_on`` (one exception class or several) and ``retry_if`` say which errors end the job at once. Every
        argument is checked here: raises ``InvalidDeclaration``, which names the type, and ``DuplicateJobType``.
        """
        if not isinstance(name, JobType):
            checked_name(name)
        with declaring(name):
            check_choice("mode", mode, get_args(HandlerMode))
            processor = partial(
                Processor,
                mode=mode,
                policies=(Policy(backoff, lease_of(lease), max_attempts, timeout, retention), self.policy),
                retry=RetryRule(fail_on_of(fail_on), retry_if),
                queue=self.queue if queue is None else checked_queue(queue),
                priority=priority if priority is None else checked_priority(priority),
                batch_limit=_checked_batch_limit(batch_limit),
                middleware=self.middleware,
            )

        def decorate(function: Callable[[RunningJob[Any]], Any]) -> JobType[Any, Any]:
            with declaring(name):
                is_async = _check_function(function, mode)
                _check_batch(function, batch_limit, is_async=is_async)
                if isinstance(name, JobType):
                    given = (entry, continues_with, blockers, on_blocker_failure)
                    if not (input is output is _ANY and given == (True, None, None, "wait")):
                        raise RegistryError("its declaration has its input, output and rules: leave them out here.")
                    job_type: JobType[Any, Any] = name
                else:
                    job_type = (AsyncJobType if is_async else JobType)(
                        name,
                        entry=entry,
                        continues_with=continues_with,
                        blockers=blockers,
                        on_blocker_failure=on_blocker_failure,
                    )
                    job_type.annotate_from(function, input, output, batch_limit=batch_limit)
                if retention is not None and not job_type.entry:
                    raise RegistryError("no chain starts with this type: set the retention of the type that starts it.")
                return self._add(processor(job_type=job_type, function=function, is_async=is_async))

        return decorate

    def _add(self, processor: Processor) -> JobType[Any, Any]:
        job_type = processor.job_type
        if job_type.name in self.by_name or job_type.processor is not None:
            raise DuplicateJobType(job_type.name)
        job_type.processor = self.by_name[job_type.name] = processor
        return job_type


class Registry:
    """Every job type and processor of the project. Names are unique over all slices."""

    def __init__(self) -> None:
        self.slices: list[Processors] = []
        self.declared: dict[str, JobType[Any, Any]] = {}

    def add(self, part: Processors | JobType[Any, Any]) -> None:
        """Adds a slice or a declared type; the same object twice is once. Raises ``DuplicateJobType``."""
        if isinstance(part, JobType):
            if self.declared.setdefault(part.name, part) is not part:
                raise DuplicateJobType(part.name)
        elif part not in self.slices:
            self.slices.append(part)
        self.check()

    def check(self) -> None:
        """Raises ``DuplicateJobType`` for a name two different types have."""
        seen: dict[str, JobType[Any, Any]] = dict(self.declared)
        for processor in self.processors():
            if seen.setdefault(processor.job_type.name, processor.job_type) is not processor.job_type:
                raise DuplicateJobType(processor.job_type.name)

    def lacking(self, required: Iterable[type[Middleware]], types: Container[str]) -> str:
        """Every slice with one of these types that lacks required middleware, and what it lacks; "" when none does."""
        required = tuple(required)
        served = [part for part in self.slices if any(name in types for name in part.by_name)]
        lacks = [(part.name, lacking(part.middleware, required)) for part in served]
        return described((name, kinds) for name, kinds in lacks if kinds)

    def processors(self) -> Iterator[Processor]:
        for part in self.slices:
            yield from part

    def processor(self, name: str) -> Processor:
        """The processor of a type; raises ``ProcessorNotFound``."""
        for part in self.slices:
            if name in part.by_name:
                return part.by_name[name]
        raise ProcessorNotFound(name)

    def job_types(self) -> dict[str, JobType[Any, Any]]:
        types = dict(self.declared)
        types.update((processor.job_type.name, processor.job_type) for processor in self.processors())
        return types

    def job_type(self, name: "str | JobType[Any, Any]") -> JobType[Any, Any]:
        """The job type of that name (a JobType is itself); raises ``JobTypeNotFound``."""
        if isinstance(name, JobType):
            return name
        types = self.job_types()
        if name_of(name) not in types:
            raise JobTypeNotFound(name, types)
        return types[name]

    def autodiscover(self) -> None:
        """Imports each app's ``jobs`` module, or those its ``jobchains_modules`` names, and adds what they declare."""
        for config in apps.get_app_configs():
            for module in _job_modules(config):
                self.add_module(module)

    def add_module(self, module: ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if isinstance(value, Processors):
                value.found_as = value.found_as or f"{module.__name__}.{name}"
            if isinstance(value, Processors | JobType):
                self.add(value)


def get_registry() -> Registry:
    """The registry on the app config."""
    return cast("JobchainsConfig", apps.get_app_config("django_jobchains")).registry


def _job_modules(config: AppConfig) -> Iterator[ModuleType]:
    """``jobs`` of the app if it has one; names in ``jobchains_modules`` are relative to the app, or dotted paths."""
    names = getattr(config, "jobchains_modules", None)
    if names is None:
        if module_has_submodule(config.module, "jobs"):
            yield import_module(f"{config.name}.jobs")
        return
    for name in names:
        is_relative = "." not in name and module_has_submodule(config.module, name)
        yield import_module(f"{config.name}.{name}" if is_relative else name)


def _checked_batch_limit(given: int | None) -> int | None:
    is_count = isinstance(given, int) and not isinstance(given, bool) and given >= 1
    if not (given is None or is_count):
        raise ValueError(f"batch_limit={given!r:.50}: a whole number, 1 or more; leave it out for one job at a time.")
    return given


def _check_batch(function: Callable[..., Any], batch_limit: int | None, *, is_async: bool) -> None:
    if batch_limit is not None and is_async:
        raise RegistryError(f"{function.__qualname__} is async: a handler of batches is a plain function.")
    try:
        takes = first_annotation(function)
    except RegistryError:  # said where the annotations are needed
        return
    kind = get_origin(takes) or takes
    if batch_limit is not None and kind is RunningJob:
        raise RegistryError(f"With batch_limit {function.__qualname__} takes a Batch[…] of jobs, not a RunningJob.")
    if batch_limit is None and kind is Batch:
        raise RegistryError(f"{function.__qualname__} takes a Batch: say with batch_limit=N of how many jobs at most.")


def _check_function(function: Callable[..., Any], mode: HandlerMode) -> bool:
    """Raises ``RegistryError``; whether it is an ``async def`` function."""
    plain = plain_function(function)
    if inspect.isasyncgenfunction(plain):
        raise RegistryError(f"{function!r} has a 'yield': an async handler returns its output.")
    is_async = iscoroutinefunction(plain)
    if is_async and mode == "atomic":
        raise RegistryError(
            f"{function!r} is async: mode='atomic' would hold a transaction while it awaits. Leave the mode out, and "
            "write to the database in 'await job.acomplete(function)'."
        )
    try:
        inspect.signature(function).bind("job")
    except TypeError as error:
        raise RegistryError(f"{function!r} must take one argument: def handler(job: RunningJob[...]).") from error
    return is_async
