"""The slices of the registry, in which apps register the functions that handle job types."""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from types import UnionType
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Union, Unpack, get_args, get_origin, overload

from django.db.models import Model
from django.forms import BaseForm

from django_jobchains.declare.job_types import (
    HandlerMode,
    JobType,
    OnBlockerFailure,
    Processor,
    check_context,
    checked_name,
    declaration_errors,
    first_annotation,
)
from django_jobchains.declare.labels import Label
from django_jobchains.declare.limits import Concurrency, LimitKey, Rate, TypeLimits, checked_key, record_limits
from django_jobchains.declare.policies import (
    Backoff,
    BackoffFunction,
    FailOn,
    Lease,
    Policy,
    Retention,
    RetryRule,
    checked_kind,
    to_exception_classes,
    to_lease,
)
from django_jobchains.declare.schedules import DeclaredSchedule, ScheduleOptions, ScheduleOptionsWithoutInput
from django_jobchains.exceptions import DuplicateJobType, ProcessorNotFound, RegistryError
from django_jobchains.handlers.batch import Batch
from django_jobchains.handlers.running_job import (
    ContextT_contra,
    Continuation,
    RunningJob,
    is_async_function,
    plain_function,
)
from django_jobchains.isolation import Isolation, Level, to_isolation
from django_jobchains.middleware.hooks import Hook, Middleware, check_hooks, checked_middleware
from django_jobchains.payloads.types import Given, name_of, name_of_type
from django_jobchains.records.declarations import RecordOptions, RecordType, checked_model, checked_options
from django_jobchains.records.processor import RecordProcessor, handler_of, is_async, make_processor
from django_jobchains.values import PRIORITY, QUEUE, TYPE_NAME, Choice, Count, DurationLike, check_options

#: A subclass or an instance of ``RecordProcessor``, a function or another callable object.
HandlesT = TypeVar("HandlesT", bound=Callable[..., Any] | RecordProcessor[Any])
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")


class DeclarationOptions(TypedDict, total=False):
    """The arguments of ``register`` that declare a new type. See ``JobType``."""

    input: Any
    output: Any
    entry: bool
    continues_with: Iterable[str | JobType[Any, Any]] | None
    blockers: Iterable[str | JobType[Any, Any]] | None
    on_blocker_failure: OnBlockerFailure
    upgrade_input: Callable[[Any], Any] | None
    completion_form: type[BaseForm] | str | None
    label: Label | None


class ProcessorOptions(TypedDict, total=False):
    """The arguments of ``register`` that a slice may set for all of its processors."""

    mode: HandlerMode | None
    backoff: Backoff | BackoffFunction | None
    lease: Lease | DurationLike | None
    max_attempts: float | None
    timeout: DurationLike | None
    isolation: Isolation | Level | None
    retention: Retention | None
    batch_limit: int | None
    retry_if: Callable[[BaseException], bool] | None
    fail_on: FailOn | None
    on_failure: str | JobType[Any, Any] | None
    queue: str | None
    priority: int | None
    concurrency: Concurrency | None
    rate: Rate | None
    fair: LimitKey | None


class RecordsOptions(RecordOptions, total=False):
    """The keyword arguments of ``Processors.records``."""

    concurrency: Concurrency | None
    rate: Rate | None
    fair: str | None


class RegisterOptions(DeclarationOptions, ProcessorOptions, total=False):
    """The keyword arguments of ``Processors.register``."""


#: The arguments of ``DeclarationOptions`` with their defaults, which may also be passed with a declared type.
_NOT_DECLARED = {
    name: parameter.default for name, parameter in inspect.signature(JobType).parameters.items() if name != "name"
}


class Registration(Protocol[ContextT_contra]):
    """The decorator that ``register`` returns for a new type, with the kinds of functions it takes.

    ``ContextT_contra`` is the context that the slice's middleware provides. A handler may need a part of it.

    If an annotation contains Any, mypy uses the types of an overload only if it is the only one that matches, or if all
    that match return the same. So the last overload includes coroutines. Because of that, it does not match functions
    with an annotated result that earlier overloads match. If no overload matches, mypy's error shows the first one. See
    docs/decisions/0036-overloads-of-register.md.
    """

    @overload
    def __call__(
        self, function: Callable[[RunningJob[InputT, Any, ContextT_contra]], Continuation], /
    ) -> JobType[InputT, Any]: ...
    @overload
    def __call__(
        self, function: Callable[[RunningJob[InputT, Any, ContextT_contra]], Coroutine[Any, Any, Continuation]], /
    ) -> JobType[InputT, Any]: ...
    @overload
    def __call__(
        self,
        function: Callable[[RunningJob[InputT, Any, ContextT_contra]], Coroutine[Any, Any, OutputT | Continuation]],
        /,
    ) -> JobType[InputT, OutputT]: ...
    @overload
    def __call__(self, function: Callable[[Batch[InputT, ContextT_contra]], None], /) -> JobType[InputT, Any]: ...
    @overload
    def __call__(
        self,
        function: Callable[
            [RunningJob[InputT, Any, ContextT_contra]], Coroutine[Any, Any, OutputT] | OutputT | Continuation
        ],
        /,
    ) -> JobType[InputT, OutputT]: ...


class Processors(Generic[ContextT_contra]):
    """A slice of the project's processors, with defaults for the arguments of ``register``.

    If the slice has ``on_failure``, it may contain the type that ``on_failure`` names.
    """

    def __init__(
        self, *, middleware: Iterable[Middleware[ContextT_contra]] | None = None, **options: Unpack[ProcessorOptions]
    ) -> None:
        check_options("Processors", options, ProcessorOptions)
        try:
            self.policy, self.defaults = _checked_options(options)
        except (TypeError, ValueError) as error:
            raise RegistryError(f"Processors(): {error}") from error
        #: Middleware, the outermost first.
        self.middleware = checked_middleware(() if middleware is None else middleware)
        for number, part in enumerate(self.middleware, start=1):
            for hook in get_args(Hook):
                check_context(getattr(part, hook), self.middleware[:number])
        self.by_name: dict[str, Processor] = {}
        #: Record workers. Their names are unique among job types and record workers.
        self.record_types: dict[str, RecordType] = {}
        #: The schedules. Their chains may begin with types of any slice.
        self.schedules: list[DeclaredSchedule] = []
        #: ``module.variable`` if autodiscovery found the slice there.
        self.found_as = ""

    @property
    def name(self) -> str:
        """The name of the slice in messages: the module and variable, or else its types."""
        names = sorted({*self.by_name, *self.record_types})
        return self.found_as or f"the slice with {', '.join(names) or 'no types'}"

    def __iter__(self) -> Iterator[Processor]:
        return iter(self.by_name.values())

    @overload
    def register(self, name: str, **options: Unpack[RegisterOptions]) -> Registration[ContextT_contra]: ...

    @overload
    def register(
        self, name: JobType[InputT, OutputT], **options: Unpack[RegisterOptions]
    ) -> Callable[
        [
            Callable[
                [RunningJob[InputT, Any, ContextT_contra]],
                Coroutine[Any, Any, OutputT | Continuation] | OutputT | Continuation,
            ]
            | Callable[[Batch[InputT, ContextT_contra]], None]
        ],
        JobType[InputT, OutputT],
    ]: ...

    def register(self, name: Any, **options: Unpack[RegisterOptions]) -> Any:
        """Register the decorated function as the processor of a job type, and return the type.

        ``name`` is a declared ``JobType`` or the name of a new type, which takes the arguments of ``JobType``; its
        input and output default to the handler's annotations. ``mode="atomic"`` runs the whole handler in the
        completion transaction. After ``timeout``, a timedelta or a number of seconds, ``job.signal`` is aborted with
        the reason ``timed_out``. ``retention``: how long chains that start with this type are kept. With
        ``batch_limit``, the function takes a ``Batch`` of at most this number of jobs. ``backoff`` may be a function
        that receives the number of failures and the error (None after a crash), and returns seconds. ``max_attempts``
        and ``timeout`` may be ``math.inf``. ``fail_on`` (exception classes) and ``retry_if`` decide which errors fail
        the job without a retry. ``on_failure``: the type of the chain that is enqueued when a job fails, with a
        ``FailedJob`` as its input. ``concurrency``: how many of its jobs may run at the same time, in all workers
        together. ``rate``: how many may start in a period. ``fair``: a field of the input, or a function that receives
        the input; jobs with different values are claimed in turn. Arguments that are omitted or None default to the
        arguments of the slice. A function may be registered for several types, each with its own arguments, by
        decorating it several times. Raises ``InvalidDeclaration``, which names the type, and ``DuplicateJobType``.
        """
        check_options("register", options, RegisterOptions)
        if not isinstance(name, JobType):
            checked_name(name)
        with declaration_errors(name):
            settings = self._settings(name_of(name), options)

        def decorate(function: Callable[[RunningJob[Any]], Any]) -> JobType[Any, Any]:
            with declaration_errors(name):
                if isinstance(function, JobType):
                    if function.processor is None:
                        raise ProcessorNotFound(function.name)
                    function = function.processor.function
                is_async = _check_handler(function, settings["mode"], settings["batch_limit"])
                check_hooks(self.middleware, is_async=is_async)
                check_context(function, self.middleware)
                job_type = _job_type(name, function, options, settings["batch_limit"])
                job_type.check_blockers(function, {})
                if settings["limits"] is not None:
                    settings["limits"].check_fields(job_type.input_codec.annotation)
                return self._add(Processor(job_type, function, is_async=is_async, **settings))

        return decorate

    def records(
        self, model: type[Model], name: str | None = None, **options: Unpack[RecordsOptions]
    ) -> Callable[[HandlesT], HandlesT]:
        """Register the decorated ``RecordProcessor``, or function ``handle(record, run)``, for the rows of a model.

        An instance of a ``RecordProcessor``, a partial or a callable object can also be passed. ``name`` defaults to
        ``"app_label.model"``. ``queryset``: the rows that are dequeued, as handlers receive them. ``columns``: a dict
        from column names of ``JobRecord`` to the fields of the model, if they differ. ``max_attempts``: the number of
        errors after which a record is failed. ``retry_after``: the wait before an errored record is tried again; with
        None, it is not tried again. ``stalled_after``: how long after the last heartbeat another worker takes a record
        back, at most ``max_resets`` times. ``slots``: how many of a worker's slots may handle these records.
        ``concurrency``, ``rate`` and ``fair``: as for ``register``, with the name of a field of the model;
        ``isolation``: as for ``register``. These four default to the arguments of the slice. Raises
        ``InvalidDeclaration``, which names the registration, and ``DuplicateJobType``.
        """
        check_options("records", options, RecordsOptions)
        checked = checked_model(model)
        record_name = checked_name(checked._meta.label_lower if name is None else name)
        with declaration_errors(record_name):
            fields = checked_options(checked, options)
            given = options.get("queue")
            queue = self.defaults.get("queue") if given is None else QUEUE.check("queue", given)
            fields["own_isolation"] = fields["own_isolation"] or self.policy.isolation
            fields["limits"] = self._record_limits(options)

        def decorate(handles: HandlesT) -> HandlesT:
            with declaration_errors(record_name):
                processor = make_processor(handles)
                check_hooks(self.middleware, is_async=is_async(processor))
                check_context(handler_of(processor), self.middleware)
            kind = RecordType(record_name, checked, processor, own_queue=queue, middleware=self.middleware, **fields)
            self._check_name(record_name, kind)
            self.record_types[record_name] = kind
            return handles

        return decorate

    @overload
    def schedule(
        self, name: str, job_type: str | JobType[None, Any], **options: Unpack[ScheduleOptionsWithoutInput]
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        job_type: str | JobType[InputT, Any],
        *,
        input: Given[InputT],
        **options: Unpack[ScheduleOptionsWithoutInput],
    ) -> None: ...
    def schedule(self, name: str, job_type: str | JobType[Any, Any], **options: Unpack[ScheduleOptions]) -> None:
        """Declare a schedule. At each of its ticks, one worker enqueues a chain of this type.

        Pass ``cron``, an expression such as ``"0 3 * * *"`` in the ``timezone`` (by default, the project's time zone),
        or ``every``, a duration of at least one second. ``input``: the input of each chain. ``overlap``: what happens
        at a tick if the chain of the previous tick has not ended: "allow" enqueues another chain, "skip" skips the
        tick, and "queue" enqueues at most one chain when the previous one has ended. ``on_missed``: which ticks fire
        later if no worker was running: "run_once" fires only the latest tick, "skip" none, and "run_all" the last
        ``max_catch_up`` ticks. ``jitter``: the maximum of a random delay of each chain. ``queue`` and ``priority``
        default to the values of the processor. The arguments are checked by Django's system checks, and when a worker
        starts.
        """
        check_options("schedule", options, ScheduleOptions)
        self.schedules.append(DeclaredSchedule(name, job_type, options))

    def _settings(self, name: str, options: RegisterOptions) -> dict[str, Any]:
        """Return the fields of a processor with these options, which replace the slice's."""
        policy, own = _checked_options(options)
        values = {**self.defaults, **own}
        if "on_failure" not in own and values.get("on_failure") == name:
            del values["on_failure"]
        limits = [values.get(option) for option in ("concurrency", "rate", "fair")]
        return {
            "mode": values.get("mode", "staged"),
            "policies": (policy, self.policy),
            "retry": RetryRule(values.get("fail_on", ()), values.get("retry_if")),
            **{name: values.get(name) for name in ("queue", "priority", "batch_limit", "on_failure")},
            "limits": TypeLimits(*limits) if any(limits) else None,
            "middleware": self.middleware,
        }

    def _record_limits(self, options: RecordsOptions) -> TypeLimits | None:
        """Return the limits of records with these options. A key takes precedence over the slice's ``fair``."""
        given = {name: check(value) for name, check in _LIMITS.items() if (value := options.get(name)) is not None}
        limits = {**self.defaults, **given}
        concurrency, rate = limits.get("concurrency"), limits.get("rate")
        is_keyed = any(limit is not None and limit.key is not None for limit in (concurrency, rate))
        return record_limits(concurrency, rate, None if is_keyed and "fair" not in given else limits.get("fair"))

    def _check_name(self, name: str, new: Processor | RecordType, other: Processor | None = None) -> None:
        """Raise ``DuplicateJobType`` if the slice has this name, or its type has another processor."""
        if found := self.by_name.get(name) or self.record_types.get(name) or other:
            raise DuplicateJobType(name, found, new)

    def _add(self, processor: Processor) -> JobType[Any, Any]:
        job_type = processor.job_type
        self._check_name(job_type.name, processor, job_type.processor)
        job_type.processor = processor
        # A new dict, because tasks are added while other threads read it.
        self.by_name = {**self.by_name, job_type.name: processor}
        return job_type


def _checked_options(options: ProcessorOptions) -> tuple[Policy, dict[str, Any]]:
    """Return the policy, and the other options that are set; raise ``TypeError`` or ``ValueError``."""
    policy = Policy(
        options.get("backoff"),
        to_lease(options.get("lease")),
        options.get("max_attempts"),
        options.get("timeout"),
        options.get("retention"),
        to_isolation(options.get("isolation")),
    )
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return policy, {name: check(given[name]) for name, check in _CHECKS.items() if name in given}


_LIMITS: Mapping[str, Callable[[Any], Any]] = {
    "concurrency": lambda given: checked_kind("concurrency", given, Concurrency, "Concurrency(limit, key=…, group=…)"),
    "rate": lambda given: checked_kind("rate", given, Rate, "Rate(limit, per, burst=…, key=…, group=…)"),
    "fair": partial(checked_key, "fair"),
}
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "mode": partial(Choice(*get_args(HandlerMode)).check, "mode"),
    "queue": partial(QUEUE.check, "queue"),
    "priority": partial(PRIORITY.check, "priority"),
    "batch_limit": partial(Count().check, "batch_limit"),
    "fail_on": to_exception_classes,
    "retry_if": lambda given: RetryRule(retry_if=given).retry_if,
    "on_failure": lambda given: TYPE_NAME.check("on_failure", name_of(given)),
    **_LIMITS,
}


def _job_type(
    name: str | JobType[Any, Any], function: Callable[..., Any], options: RegisterOptions, batch_limit: int | None
) -> JobType[Any, Any]:
    """Return the declared type, or a new one with the types of the handler's annotations."""
    declaration: dict[str, Any] = {key: options.get(key, default) for key, default in _NOT_DECLARED.items()}
    if isinstance(name, JobType):
        if declaration != _NOT_DECLARED:
            raise RegistryError("its declaration has its input, output and rules: leave them out here.")
        job_type = name
    else:
        types = declaration.pop("input"), declaration.pop("output")
        job_type = JobType(name, **declaration)
        job_type.annotate_from(function, *types, batch_limit=batch_limit)
    if options.get("retention") is not None and not job_type.entry:
        raise RegistryError("no chain starts with this type: set the retention of the type that starts it.")
    return job_type


def _check_handler(function: Callable[..., Any], mode: HandlerMode, batch_limit: int | None) -> bool:
    """Return whether the handler is an ``async def`` function. Raise ``RegistryError`` if it cannot be a handler."""
    is_async, name = is_async_function(function), plain_function(function).__qualname__
    if is_async and mode == "atomic":
        raise RegistryError(
            f"{name!r} is async: mode='atomic' would hold a transaction while it awaits. Leave the mode out, and write "
            "to the database in 'await job.acomplete(function)'."
        )
    try:
        inspect.signature(function).bind("job")
    except TypeError as error:
        problem = f"{name!r} must take one argument, the job: def handler(job: RunningJob[…]). Its input is job.input."
        raise RegistryError(problem) from error
    _check_batch_handler(function, batch_limit, is_async=is_async)
    return is_async


def _check_batch_handler(function: Callable[..., Any], batch_limit: int | None, *, is_async: bool) -> None:
    if batch_limit is not None and is_async:
        raise RegistryError(f"{function.__qualname__!r} is async: batches need a plain function.")
    try:
        annotation = first_annotation(function)
    except RegistryError:  # It is raised again where the annotations are needed.
        return
    kind, name = get_origin(annotation) or annotation, plain_function(function).__qualname__
    if batch_limit is not None and kind is RunningJob:
        raise RegistryError(f"With batch_limit, {name!r} takes a Batch[…] of jobs, not a RunningJob.")
    if batch_limit is None and kind is Batch:
        raise RegistryError(f"{name!r} takes a Batch: set the size of batches with batch_limit=N.")
    if _is_of_input(annotation):
        taken, given = "RunningJob" if batch_limit is None else "Batch", name_of_type(annotation)
        raise RegistryError(
            f"{name!r} is annotated with {given}, but takes a {taken}: annotate it with {taken}[{given}], and read the "
            f"input from {'job.input' if batch_limit is None else 'the jobs of the batch'}."
        )


def _is_of_input(annotation: Any) -> bool:
    """Return whether a handler's parameter is annotated with the type of its input instead of the type of the job."""
    kind = get_origin(annotation) or annotation
    if kind in (Union, UnionType):
        return all(map(_is_of_input, get_args(annotation)))
    is_class = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return is_class and not (issubclass(kind, RunningJob | Batch) or issubclass(RunningJob, kind))
