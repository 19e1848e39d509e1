"""A backend for Django's tasks framework. Tasks are stored as jobs, and run in the same workers.

It works with ``django.tasks`` (Django 6.0 and newer) and with its backport ``django_tasks`` (the extra ``tasks``).
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging import DEBUG
from threading import Lock
from typing import Any
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.signals import setting_changed
from django.utils import timezone

from django_jobchains.db.connections import call_after_commit
from django_jobchains.declare import registry as registries
from django_jobchains.declare.job_types import JobType, Processor, create_first_jobs
from django_jobchains.declare.limits import Concurrency, LimitKey, Rate
from django_jobchains.declare.policies import Backoff, BackoffFunction, Retention
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.declare.slices import Processors
from django_jobchains.exceptions import ProcessorNotFound, RegistryError, TaskNotImported
from django_jobchains.isolation import Isolation, Level
from django_jobchains.store import get_store
from django_jobchains.tasks_backend.framework import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from django_jobchains.tasks_backend.results import AnyResult, AnyTask, is_heard, read_job, result_of, shown
from django_jobchains.tasks_backend.task_types import (
    OPTIONS,
    TaskSlice,
    TaskType,
    check_keys,
    converted,
    imported,
    name_in,
    own_options,
    parts_of,
)
from django_jobchains.values import QUEUE, TYPE_NAME, DurationLike

__all__ = ("JobchainsBackend", "JobchainsTask")

_lock = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobchainsTask(Task):  # type: ignore[type-arg]
    """A task that can have its own options instead of the options of its backend, as in ``@task(max_attempts=5)``."""

    max_attempts: float | None = None
    backoff: Backoff | BackoffFunction | DurationLike | None = None
    timeout: DurationLike | None = None
    isolation: Isolation | Level | None = None
    retention: Retention | DurationLike | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    fair: LimitKey | None = None

    @property
    def job_type(self) -> JobType[Any, Any]:
        """The job type of the task, with which it can be scheduled or be a step of a chain."""
        backend = self.get_backend()
        if not isinstance(backend, JobchainsBackend):
            raise InvalidTask(f"The backend {self.backend!r} of the task {self.module_path!r} runs no jobs.")
        return backend.slice().type_of(self)


class JobchainsBackend(BaseTaskBackend):
    """A backend for ``TASKS`` that enqueues tasks as jobs, and reads their results.

    ``OPTIONS``: ``max_attempts`` (1 by default), ``backoff`` (a ``Backoff``, seconds, or the dotted path of a
    ``Backoff`` or a function), ``timeout``, ``isolation`` and ``retention`` (a ``Retention``, or a timedelta or seconds
    for all results), ``concurrency``, ``rate`` and ``fair``, as for ``Processors``. The key of a limit is the name of a
    parameter of the task, or a function that receives a dict of its arguments. Keyword arguments of ``@task`` replace
    the options for one task.
    """

    task_class = JobchainsTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        try:
            super().__init__(alias, params)
        except TypeError:  # QUEUES is not a list of names, which the check reports.
            super().__init__(alias, {name: value for name, value in params.items() if name != "QUEUES"})
        self._params = params
        #: Tasks that ``enqueue`` has found to be valid.
        self._valid: set[AnyTask] = set()

    def slice(self, registry: Registry | None = None) -> TaskSlice:
        """Return the slice with the tasks of this backend. Raises ``InvalidTaskBackend`` for invalid ``OPTIONS``."""
        registry = registry or get_registry()
        return _slice(registry, self.alias) or self._add_slice(registry)

    def _add_slice(self, registry: Registry) -> TaskSlice:
        with _lock:
            if (part := _slice(registry, self.alias)) is None:
                try:
                    part = TaskSlice(self.alias, self.options, registry, type(self))
                except (RegistryError, TypeError, ValueError, ImportError) as error:
                    raise InvalidTaskBackend(f"TASKS[{self.alias!r}]['OPTIONS']: {error}") from error
                registry.slices = [*registry.slices, part]
            return part

    def validate_task(self, task: AnyTask) -> None:
        super().validate_task(task)
        own = own_options(task)
        try:
            if own:
                Processors(**converted(own))
            if isinstance(self.options, Mapping):
                check_keys(task, {**self.options, **own})
        except (RegistryError, TypeError, ValueError, ImportError) as error:
            raise InvalidTask(f"The task {task.module_path!r}: {error}") from error

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> Any:
        """Enqueue a task in the caller's transaction, and send ``task_enqueued`` after its commit.

        Raises ``InvalidTask``, and ``TypeError`` or ``ValueError`` for arguments that are not JSON.
        """
        self._validate(task)
        job_type, run_at = self.slice().type_of(task), task.run_after
        if run_at is not None and not settings.USE_TZ and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        result: AnyResult = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        item = job_type.item(
            {"args": result.args, "kwargs": result.kwargs},
            run_at=run_at,
            priority=int(task.priority),
            queue=task.queue_name,
        )
        [created] = create_first_jobs([item])
        object.__setattr__(result, "id", str(created.id))
        object.__setattr__(result, "enqueued_at", shown(created.created_at))
        if is_heard(task_enqueued, DEBUG):  # Django logs the errors of receivers.
            call_after_commit(get_store().using, partial(task_enqueued.send_robust, type(self), task_result=result))
        return result

    def _validate(self, task: AnyTask) -> None:
        """Raise ``InvalidTask``. Tasks without ``run_after`` are few, and are checked once."""
        if task in self._valid:
            return
        self.validate_task(task)
        try:
            TYPE_NAME.check("name", name_in(self.alias, task.module_path))
            QUEUE.check("queue_name", task.queue_name)
        except ValueError as error:
            raise InvalidTask(f"The task {task.module_path!r} cannot be enqueued: {error}") from error
        if task.run_after is None:
            self._valid.add(task)

    def get_result(self, result_id: str) -> AnyResult:
        """Return the result with this id of any task of this backend. Raises ``TaskResultDoesNotExist``."""
        try:
            job_id = UUID(result_id)
        except (AttributeError, TypeError, ValueError):  # Django calls this in coroutines, where a query would fail.
            raise TaskResultDoesNotExist(result_id) from None
        if (job := read_job(job_id)) and (task := self._task_named(job.type_name)):
            return result_of(task, job)
        raise TaskResultDoesNotExist(result_id)

    def _task_named(self, type_name: str) -> AnyTask | None:
        """Return the task of a type, or None if it is not a task of this backend."""
        alias, path = parts_of(type_name)
        known = get_registry().find(type_name)
        if alias != self.alias or not (known is None or isinstance(known, TaskType)):
            return None
        if isinstance(known, TaskType):
            return known.task
        try:
            task = imported(path)
        except TaskNotImported as error:
            return self.missing_task(path, error) if type_name in get_store().task_names.read() else None
        return self.slice().add(type_name, task).task

    def missing_task(self, path: str, error: TaskNotImported) -> AnyTask:
        """Return a task that stands for a task that cannot be imported, and raises an error like this one."""

        def missing(*args: Any, **kwargs: Any) -> None:
            # Not the same error, whose traceback would grow with each job.
            raise TaskNotImported(path, error.problem) from error.__cause__

        missing.__module__, _, missing.__qualname__ = path.rpartition(".")
        missing.__name__ = missing.__qualname__
        queue = min(self.queues, default="default")
        return self.task_class(func=missing, backend=self.alias, queue_name=queue)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return list(self._problems())

    def _problems(self) -> Iterator[CheckMessage]:
        name = f"TASKS[{self.alias!r}]"
        if not apps.is_installed("django_jobchains"):
            hint = "Add 'django_jobchains' to INSTALLED_APPS."
            yield Error(
                f"{name} stores tasks in tables of an app that is not installed.", hint=hint, id="jobchains.E030"
            )
        queues = self._params.get("QUEUES", [])
        if not isinstance(queues, list | tuple | set | frozenset):
            why = ": each of its letters would be a queue" if isinstance(queues, str) else ""
            problem = f"{name}['QUEUES'] is a list of names, not {queues!r:.100}{why}."
            example = queues if isinstance(queues, str) else "default"
            yield Error(problem, hint=f"Write it as a list, as in ['{example:.100}'].", id="jobchains.E031")
            queues = []
        for queue in queues:
            try:
                QUEUE.check(f"{name}['QUEUES']", queue)
            except ValueError as error:
                yield Error(str(error), hint="Use a shorter name, of one line.", id="jobchains.E031")
        given: Any = self.options
        options = given if isinstance(given, Mapping) else {"OPTIONS": given}
        for option, value in options.items():
            try:
                Processors(**converted({option: value}))
            except (RegistryError, TypeError, ValueError, ImportError) as error:
                hint = f"The options are {', '.join(OPTIONS)}."
                yield Error(f"{name}['OPTIONS']: {error}", hint=hint, id="jobchains.E032")


def _slice(registry: Registry, alias: str) -> TaskSlice | None:
    for part in registry.slices:
        if isinstance(part, TaskSlice) and part.alias == alias:
            return part
    return None


# For workers


def backends() -> dict[str, JobchainsBackend]:
    """Return the backends of this class in ``TASKS``, by alias."""
    found: dict[str, JobchainsBackend] = {}
    for alias in task_backends.settings:
        with suppress(InvalidTaskBackend):  # It cannot be imported, which Django reports where it is used.
            backend = task_backends[alias]
            if isinstance(backend, JobchainsBackend):
                found[alias] = backend
    return found


def load_task(registry: Registry, type_name: str) -> Processor:
    """Add the task with this type name to a registry, and return its processor.

    Raises ``TaskNotImported``, and ``ProcessorNotFound`` for a name that cannot be that of a task.
    """
    alias, path = parts_of(type_name)
    backend = backends().get(alias)
    if backend is None or "." not in path:
        raise ProcessorNotFound(type_name)
    task = imported(path)
    return _processor(backend.slice(registry).add(type_name, task))


def load_missing_task(registry: Registry, type_name: str, error: TaskNotImported) -> Processor:
    """Add a task that cannot be imported to a registry. Its jobs fail with this error."""
    alias, path = parts_of(type_name)
    backend = backends()[alias]
    return _processor(backend.slice(registry).add(type_name, backend.missing_task(path, error)))


def _processor(job_type: TaskType) -> Processor:
    assert job_type.processor is not None  # noqa: S101 - for the type checker
    return job_type.processor


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    """Forget the tasks, whose options may have changed. They are added again when they are used."""
    if setting in ("TASKS", "JOBCHAINS") and apps.ready:
        registry = get_registry()
        registry.slices = [part for part in registry.slices if not isinstance(part, TaskSlice)]


setting_changed.connect(_on_setting_changed)
registries.load_task = load_task
