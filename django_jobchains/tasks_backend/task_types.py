"""The job types of tasks: one for each task and backend, in a slice for each backend.

A type is named by the task's module path, with the alias of its backend before it unless that is ``default``. Its input
is ``{"args": […], "kwargs": {…}}``, and its output is what the task returns, as JSON.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial, update_wrapper
from importlib import import_module
from inspect import Parameter, Signature, signature
from threading import Lock
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.utils.module_loading import import_string

from django_jobchains.declare.job_types import JobType, Processor
from django_jobchains.declare.limits import LimitKeys, TypeLimits
from django_jobchains.declare.policies import Backoff, Retention
from django_jobchains.declare.registry import Registry
from django_jobchains.declare.slices import ProcessorOptions, Processors
from django_jobchains.exceptions import InvalidInput, InvalidPayload, RegistryError, TaskNotImported
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.middleware.hooks import required_middleware
from django_jobchains.payloads.strict_json import check_size, is_flat, is_flat_list, write_json
from django_jobchains.payloads.types import Codec
from django_jobchains.tasks_backend.framework import Task, TaskContext, normalize_json
from django_jobchains.tasks_backend.results import AnyTask, TaskSignals, changed, started_result
from django_jobchains.text.errors import describe
from django_jobchains.values import parse_duration

#: The options of a backend, and the keywords of ``@task`` that replace them for one task.
OPTIONS = ("max_attempts", "backoff", "timeout", "isolation", "retention", "concurrency", "rate", "fair")
#: A task is not tried again after an error: code that was written for Django's framework expects that it has failed.
DEFAULTS: Mapping[str, Any] = {"max_attempts": 1}

_lock = Lock()
#: Values that are JSON, so that they need no conversion.
_SCALARS = frozenset({type(None), bool, int, float, str})


class TaskInput:
    """The arguments of a call. ``None`` stands for no arguments, and "args" or "kwargs" may be left out."""

    def load(self, value: Any) -> dict[str, Any]:
        given = {} if value is None else value
        if not isinstance(given, dict) or given.keys() - {"args", "kwargs"}:
            raise ValueError('pass {"args": […], "kwargs": {…}}')
        args, kwargs = given.get("args", []), given.get("kwargs", {})
        if not (isinstance(args, list) and isinstance(kwargs, dict)):
            raise TypeError('"args" is a list, and "kwargs" is a dict')
        return {"args": args, "kwargs": kwargs}

    def dump(self, value: dict[str, Any]) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        properties = {"args": {"type": "array"}, "kwargs": {"type": "object"}}
        return {"type": "object", "properties": properties, "additionalProperties": False}


class TaskCodec(Codec):
    """The codec of ``TaskInput``, faster for what the backend enqueues."""

    def __init__(self) -> None:
        super().__init__(TaskInput())

    def encode(self, value: Any, error: type[InvalidPayload]) -> str:
        if type(value) is dict and len(value) == 2 and is_flat_list(value.get("args")) and is_flat(value.get("kwargs")):
            text = write_json(value)
            check_size(text, error)
            return text
        return super().encode(_with_text_keys(value), error)


class TaskType(JobType[Any, Any]):
    """The type of a task's jobs."""

    is_task = True

    def __init__(self, name: str, task: AnyTask) -> None:
        super().__init__(name)
        self.input_codec = TaskCodec()
        self.task = task


@dataclass(frozen=True)
class TaskLimits(TypeLimits):
    """The limits of a task, with keys that are parameters of the task, or functions of its arguments by name."""

    signature: Signature

    def keys(self, type_name: str, input: Any) -> LimitKeys:
        return super().keys(type_name, self._arguments(type_name, input) if self.declared_keys else {})

    def _arguments(self, type_name: str, input: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self.signature.bind(*input["args"], **input["kwargs"])
        except TypeError as error:
            raise InvalidInput(f"The task {type_name!r} cannot be called with these arguments: {error}.") from error
        bound.apply_defaults()
        return {**bound.arguments, **bound.kwargs}


class TaskSlice(Processors):
    """The tasks of one backend that this process has enqueued, scheduled or looked for.

    ``sender``: the sender of their signals. Raises ``RegistryError``, ``TypeError``, ``ValueError`` or ``ImportError``
    for an option that is not valid.
    """

    def __init__(self, alias: str, options: Mapping[str, Any], registry: Registry, sender: type) -> None:
        super().__init__(middleware=[kind() for kind in required_middleware()], **converted({**DEFAULTS, **options}))
        self.alias = alias
        self.found_as = f"TASKS[{alias!r}]"
        self._registry = registry
        self._sender = sender
        #: By the functions of the tasks.
        self._types: dict[Callable[..., Any], TaskType] = {}

    def type_of(self, task: AnyTask) -> TaskType:
        """Return the type of a task, and add it if it is new. Raises ``RegistryError``."""
        return self._types.get(task.func) or self.add(name_in(self.alias, task.module_path), declared(task))

    def add(self, name: str, task: AnyTask) -> TaskType:
        """Add a task as a type of this name. It replaces an earlier one, such as one that could not be imported."""
        with _lock:
            known = self.by_name.get(name)
            if known is None and self._registry.find(name) is not None:
                raise RegistryError(f"A job type has the name of the task {name!r}: rename the job type.")
            job_type = TaskType(name, task if task.backend == self.alias else changed(task, backend=self.alias))
            job_type.processor = self._processor(job_type)
            # New dicts, because other threads read the old ones.
            self.by_name = {**self.by_name, name: job_type.processor}
            if name == name_in(self.alias, task.module_path):
                self._types = {**self._types, task.func: job_type}
            return job_type

    def _processor(self, job_type: TaskType) -> Processor:
        task = job_type.task
        own: Any = {**converted(own_options(task)), "queue": task.queue_name, "priority": int(task.priority)}
        is_async = iscoroutinefunction(task.func)
        settings = self._settings(job_type.name, own)
        if limits := settings["limits"]:
            settings["limits"] = TaskLimits(limits.concurrency, limits.rate, limits.fair, signature_of(task))
        return Processor(
            job_type,
            update_wrapper(partial(_acall if is_async else _call, task), task.func),  # For lists of types.
            is_async=is_async,
            observer=TaskSignals(task, self._sender),
            **settings,
        )


def own_options(task: AnyTask) -> dict[str, Any]:
    """Return the options that ``@task`` sets for a task."""
    return {name: value for name in OPTIONS if (value := getattr(task, name, None)) is not None}


def signature_of(task: AnyTask) -> Signature:
    """Return the signature of a task as its callers see it, without the context."""
    found = signature(task.func)
    parameters = list(found.parameters.values())
    return found.replace(parameters=parameters[1:]) if task.takes_context else found


def check_keys(task: AnyTask, options: Mapping[str, Any]) -> None:
    """Raise ``RegistryError`` for the key of a limit that is not a parameter of the task. ``options``: of the task."""
    limits = options.get("concurrency"), options.get("rate")
    keys = [key for key in (options.get("fair"), *(getattr(limit, "key", None) for limit in limits)) if key is not None]
    if not keys:
        return
    parameters = signature_of(task).parameters
    takes_any = any(part.kind is Parameter.VAR_KEYWORD for part in parameters.values())
    for key in keys:
        if isinstance(key, str) and key not in parameters and not takes_any:
            known = f"It has {', '.join(parameters)}." if parameters else "It has none."
            raise RegistryError(f"{key!r} is the key of a limit, but not a parameter of the task. {known}")


def converted(options: Mapping[str, Any]) -> ProcessorOptions:
    """Return options of a backend or a task as the arguments of ``Processors``, which checks them.

    Raises ``ValueError`` for an unknown one, and ``ImportError`` for a ``backoff`` that cannot be imported.
    """
    if unknown := ", ".join(sorted(map(str, options.keys() - set(OPTIONS)))):
        raise ValueError(f"unknown options: {unknown}. Known: {', '.join(OPTIONS)}.")
    backoff, retention = options.get("backoff"), options.get("retention")
    if isinstance(backoff, str) and parse_duration(backoff) is None:
        backoff = import_string(backoff)
    elif isinstance(backoff, int | float | timedelta | str) and not isinstance(backoff, bool):
        backoff = Backoff(backoff, 1, backoff, 0)
    if isinstance(retention, int | float | timedelta | str) and not isinstance(retention, bool):
        retention = Retention(retention, retention, retention)
    result: Any = {**options, "backoff": backoff, "retention": retention}
    return result  # type: ignore[no-any-return]


# Names


def name_in(alias: str, path: str) -> str:
    """Return the name of the type of a task. ``path``: its module path."""
    return path if alias == "default" else f"{alias}:{path}"


def parts_of(type_name: str) -> tuple[str, str]:
    """Return the alias and the module path in the name of a type."""
    alias, _, path = type_name.rpartition(":")
    return alias or "default", path


def imported(path: str) -> AnyTask:
    """Import a task by its module path. Raises ``TaskNotImported``."""
    module_name, _, name = path.rpartition(".")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise TaskNotImported(path, describe(error)) from error
    found = getattr(module, name, None)
    if not isinstance(found, Task):  # A task may have another name than its function.
        tasks = [part for part in vars(module).values() if isinstance(part, Task)]
        found = next((task for task in tasks if task.module_path == path), None)
    if found is None:
        raise TaskNotImported(path, f"the module {module_name!r} has no such task.")
    return found


def declared(task: AnyTask) -> AnyTask:
    """Return a task as it is declared, without the changes of ``using``."""
    try:
        found = imported(task.module_path)
    except TaskNotImported:  # Other processes will not find it either.
        return replace(task, run_after=None)
    is_same = found.func is task.func and own_options(found) == own_options(task)
    return found if is_same else replace(task, run_after=None)


# Handlers


def _call(task: AnyTask, job: RunningJob[Any]) -> Any:
    context = [TaskContext(task_result=started_result(task, job, job.input))] if task.takes_context else []
    return _as_json(task.func(*context, *job.input["args"], **job.input["kwargs"]))


async def _acall(task: AnyTask, job: RunningJob[Any]) -> Any:
    context = []
    if task.takes_context:
        is_retry = job.attempt > 1  # Only then it needs queries.
        read = partial(started_result, task, job, job.input)
        context = [TaskContext(task_result=await sync_to_async(read)() if is_retry else read())]
    return _as_json(await task.func(*context, *job.input["args"], **job.input["kwargs"]))


def _as_json(value: Any) -> Any:
    return value if type(value) in _SCALARS else _with_text_keys(normalize_json(value))


def _with_text_keys(value: Any) -> Any:
    """Return JSON whose dicts may have keys that are numbers, bools or None, with these keys as ``json`` writes them.

    Anything else is returned as it is, for an error that names its place.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return value
