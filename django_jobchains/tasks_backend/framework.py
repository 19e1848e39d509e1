"""The names of Django's tasks framework: of ``django.tasks``, or before Django 6.0 of the backport ``django_tasks``."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING or find_spec("django.tasks"):
    from django.tasks import TaskResultStatus, task_backends
    from django.tasks import signals as framework_signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import logger as signal_logger
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
elif find_spec("django_tasks"):
    from django_tasks import TaskResultStatus, task_backends
    from django_tasks import signals as framework_signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import logger as signal_logger
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    raise ImproperlyConfigured(
        "JobchainsBackend needs django.tasks, which Django has from version 6.0 on, or its backport: install "
        "django_jobchains[tasks]."
    )

__all__ = (
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "framework_signals",
    "normalize_json",
    "signal_logger",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
)
