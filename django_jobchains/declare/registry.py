"""All job types and processors of a project."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from django_jobchains.conf import get_settings
from django_jobchains.declare.job_types import JobType, Processor, declaration_errors
from django_jobchains.declare.limits import DeclaredLimit, TypeLimits, declared_limits, group_problems
from django_jobchains.declare.schedules import checked_schedule
from django_jobchains.declare.slices import Processors
from django_jobchains.exceptions import (
    DuplicateJobType,
    InvalidSchedule,
    JobTypeNotFound,
    ProcessorNotFound,
    TaskNotImported,
)
from django_jobchains.middleware.hooks import Middleware, middleware_problem
from django_jobchains.payloads.types import name_of
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.on_failure import FailureType

#: Adds the task of Django's framework with this type name to a registry, and returns its processor. Raises
#: ``ProcessorNotFound`` and ``TaskNotImported``. The module of the backend sets it when a project imports it.
load_task: Callable[["Registry", str], Processor] | None = None


class Registry:
    """All job types, processors, record workers and schedules of the project. Names are unique across slices."""

    def __init__(self) -> None:
        self.slices: list[Processors] = []
        self.declared: dict[str, JobType[Any, Any]] = {}

    def add(self, part: Processors | JobType[Any, Any]) -> None:
        """Add a slice or a declared type, unless it was added before. Raises ``DuplicateJobType``."""
        if isinstance(part, JobType):
            if (other := self.declared.setdefault(part.name, part)) is not part:
                raise DuplicateJobType(part.name, other.processor, part.processor)
        elif part not in self.slices:
            self.slices.append(part)
        self.check()

    def check(self) -> None:
        """Raise ``DuplicateJobType`` for types with the same name, and ``InvalidDeclaration`` for invalid blockers."""
        seen: dict[str, JobType[Any, Any]] = dict(self.declared)
        for job_type in (processor.job_type for processor in self.processors()):
            if (other := seen.setdefault(job_type.name, job_type)) is not job_type:
                raise DuplicateJobType(job_type.name, other.processor, job_type.processor)
        found: dict[str, Any] = {name: job_type.processor for name, job_type in seen.items()}
        for kind in self.record_types():
            if kind.name in found:
                raise DuplicateJobType(kind.name, found[kind.name], kind)
            found[kind.name] = kind
        for processor in self.processors():  # Blockers may be named that were registered later.
            with declaration_errors(processor.job_type):
                processor.job_type.check_blockers(processor.function, seen)

    def middleware_problems(self, required: Sequence[type[Middleware[Any]]], types: Container[str]) -> str:
        """Describe the slices with these types that lack required middleware, or have it in another order.

        Return "" if there are none.
        """
        used = [part for part in self.slices if any(name in types for name in (*part.by_name, *part.record_types))]
        problems = [(part.name, middleware_problem(part.middleware, required)) for part in used]
        return "; ".join(f"{name} {problem}" for name, problem in problems if problem)

    def failure_type(self, type_name: str) -> FailureType | None:
        """Return the type that ``on_failure`` of a job type names, or None.

        If no app declares this type, a system check reports an error, but chains are still enqueued, in the default
        queue.
        """
        name = next((part.by_name[type_name].on_failure for part in self.slices if type_name in part.by_name), None)
        if name is None:
            return None
        target = self.find(name)
        handler = target.processor if target else None
        if target is None or handler is None:
            return FailureType(name, get_settings().QUEUE, 0)
        limits = handler.limits
        keys = None if limits is None else partial(limits.keys_or_shared, name, target.decode_input)
        return FailureType(name, handler.queue or get_settings().QUEUE, handler.priority or 0, keys)

    def failure_problems(self) -> Iterator[str]:
        """Describe each ``on_failure`` that cannot start a chain, or leads back to the type that failed."""
        types = self.job_types()
        following = {processor.job_type.name: processor.on_failure for processor in self.processors()}
        for name, target in following.items():
            claim = f"{name!r} has on_failure={target!r}"
            if target is None:
                continue
            if target not in types:
                yield f"{claim}, which no app declares"
            elif not types[target].entry:
                yield f"{claim}, which is declared with entry=False"
            elif types[target].blocker_slots:
                yield f"{claim}, which requires blockers"
            elif name in _followers(target, following):
                yield f"{claim}, which leads back to it, so that failures could go on forever"

    def limit_problems(self) -> Iterator[str]:
        """Describe each type whose limit differs from the limit of an earlier type with the same group."""
        return group_problems([*self._limits(), *self._record_limits()])

    def limits(self) -> dict[str, DeclaredLimit]:
        """Return the limits that hold for all workers together, by name."""
        return declared_limits(self._limits(), self._record_limits())

    def _limits(self) -> list[tuple[str, TypeLimits]]:
        return [(part.job_type.name, part.limits) for part in self.processors() if part.limits]

    def type_limits(self) -> dict[str, TypeLimits]:
        """Return the limits of the job types that have any, by the name of the type."""
        return dict(self._limits())

    def _record_limits(self) -> list[tuple[str, TypeLimits]]:
        return [(kind.name, kind.limits) for kind in self.record_types() if kind.limits]

    def sharing_limits(self) -> dict[str, list[str]]:
        """Return, for each type whose running jobs are counted, the types that share its limit, including itself."""
        groups = {name: own.concurrency.group for name, own in self._limits() if own.concurrency}
        return {
            name: [name] if group is None else [other for other, its in groups.items() if its == group]
            for name, group in groups.items()
        }

    def processors(self) -> Iterator[Processor]:
        for part in self.slices:
            yield from part

    @property
    def schedule_names(self) -> set[str]:
        """Return the names of the schedules that are declared in code."""
        return {schedule.name for part in self.slices for schedule in part.schedules}

    def schedules(self) -> tuple[list[dict[str, Any]], list[InvalidSchedule]]:
        """Return the columns of the declared schedules, and the problems of invalid declarations."""
        declared = [schedule for part in self.slices for schedule in part.schedules]
        counts = Counter(repr(schedule.name) for schedule in declared)
        valid: list[dict[str, Any]] = []
        problems: list[InvalidSchedule] = []
        for schedule in declared:
            if counts[repr(schedule.name)] > 1:
                problem = "it is declared twice: give one of them another name."
                problems.append(InvalidSchedule(schedule.name, problem))
                continue
            try:
                valid.append(checked_schedule(schedule.name, schedule.job_type, schedule.options, self.job_type))
            except InvalidSchedule as error:
                problems.append(error)
        return valid, problems

    def record_types(self) -> Iterator[RecordType]:
        for part in self.slices:
            yield from part.record_types.values()

    def record_type(self, name: str) -> RecordType:
        """Return the record worker of this name; raise ``ProcessorNotFound`` if there is none."""
        for part in self.slices:
            if name in part.record_types:
                return part.record_types[name]
        raise ProcessorNotFound(name)

    def processor(self, name: str) -> Processor:
        """Return the processor of a type; raise ``ProcessorNotFound`` if it has none.

        If the name belongs to a task that is not known yet, the task is imported, which may raise ``TaskNotImported``.
        """
        for part in self.slices:
            if name in part.by_name:
                return part.by_name[name]
        if load_task is None or name in self.declared:
            raise ProcessorNotFound(name)
        return load_task(self, name)

    def add_tasks(self, read_names: Callable[[], Iterable[str]]) -> None:
        """Add the tasks of Django's framework with these type names, which this process may not have used yet.

        ``read_names`` is called only if the project has a backend for tasks. Names of other types, and of tasks that
        cannot be imported, are skipped.
        """
        for name in read_names() if load_task else ():
            with suppress(ProcessorNotFound, TaskNotImported):
                self.processor(name)

    def job_types(self) -> dict[str, JobType[Any, Any]]:
        types = dict(self.declared)
        types.update((processor.job_type.name, processor.job_type) for processor in self.processors())
        return types

    def job_type(self, name: "str | JobType[Any, Any]") -> JobType[Any, Any]:
        """Return the job type with this name; raise ``JobTypeNotFound`` if there is none.

        If the name belongs to a task that is not known yet, the task is imported, as in ``processor``.
        """
        name = getattr(name, "job_type", name)
        if isinstance(name, JobType):
            return name
        if found := self.find(name_of(name)):
            return found
        with suppress(ProcessorNotFound, TaskNotImported):
            return self.processor(name).job_type
        raise JobTypeNotFound(name, self.job_types())

    def find(self, name: str) -> JobType[Any, Any] | None:
        """Return the job type with this name, or None if no app declares it."""
        for part in self.slices:
            if name in part.by_name:
                return part.by_name[name].job_type
        return self.declared.get(name)

    def autodiscover(self) -> None:
        """Import each app's ``jobs`` module, or its ``jobchains_modules``, and add their types and slices."""
        for config in apps.get_app_configs():
            for module in _job_modules(config):
                self.add_module(module)

    def add_module(self, module: ModuleType) -> None:
        for name, value in list(vars(module).items()):
            if isinstance(value, Processors):
                value.found_as = value.found_as or f"{module.__name__}.{name}"
            if isinstance(value, Processors | JobType):
                self.add(value)


def _followers(name: str, following: Mapping[str, str | None]) -> set[str]:
    """Return the types that ``on_failure`` reaches from a type, including this one."""
    reached: set[str] = set()
    current: str | None = name
    while current is not None and current not in reached:
        reached.add(current)
        current = following.get(current)
    return reached


def get_registry() -> Registry:
    """Return the registry of the project, which the app config holds."""
    config: Any = apps.get_app_config("django_jobchains")
    registry: Registry = config.registry
    return registry


def _job_modules(config: AppConfig) -> Iterator[ModuleType]:
    """Import the job modules of an app. Names in ``jobchains_modules`` are relative to the app, or dotted paths."""
    names = getattr(config, "jobchains_modules", None)
    if names is None:
        if module_has_submodule(config.module, "jobs"):
            yield import_module(f"{config.name}.jobs")
        return
    if isinstance(names, str):
        where = f"{type(config).__qualname__}.jobchains_modules"
        raise ImproperlyConfigured(f"{where} is a list of names, not {names!r}. Write it as [{names!r}].")
    for name in names:
        is_relative = "." not in name and module_has_submodule(config.module, name)
        try:
            module = import_module(f"{config.name}.{name}" if is_relative else name)
        except ImportError as error:
            error.add_note(f"The module {name!r} is in the jobchains_modules of the app {config.name}.")
            raise
        yield module
