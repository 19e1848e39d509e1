"""Durable, typed job chains that commit with your database transaction.

The names that most code needs can be imported from here. They are loaded on first access, because Django imports this
package before its apps are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_jobchains import chains, limits, queues, records, schedules
    from django_jobchains.conf import current_database, use_database
    from django_jobchains.declare.job_types import JobType
    from django_jobchains.declare.limits import Concurrency, Rate
    from django_jobchains.declare.policies import Backoff, Lease, Retention
    from django_jobchains.declare.slices import Processors
    from django_jobchains.exceptions import FailJob, RescheduleJob
    from django_jobchains.handlers.batch import Batch
    from django_jobchains.handlers.running_job import Continuation, RunningJob
    from django_jobchains.store.deduplication import Deduplicate
    from django_jobchains.store.on_failure import FailedJob

__version__ = "0.1.0"

__all__ = (
    "Backoff",
    "Batch",
    "Concurrency",
    "Continuation",
    "Deduplicate",
    "FailJob",
    "FailedJob",
    "JobType",
    "Lease",
    "Processors",
    "Rate",
    "RescheduleJob",
    "Retention",
    "RunningJob",
    "chains",
    "current_database",
    "limits",
    "queues",
    "records",
    "schedules",
    "use_database",
)


#: What settings and routers may import, by module: importing these modules must not need settings.
_WITHOUT_SETTINGS = {
    "Backoff": "declare.policies",
    "Concurrency": "declare.limits",
    "Lease": "declare.policies",
    "Rate": "declare.limits",
    "Retention": "declare.policies",
    "current_database": "conf",
    "use_database": "conf",
}


def __getattr__(name: str) -> Any:
    if name in ("chains", "limits", "queues", "records", "schedules"):
        return import_module(f"django_jobchains.{name}")
    if module := _WITHOUT_SETTINGS.get(name):
        return getattr(import_module(f"django_jobchains.{module}"), name)
    if name in __all__:
        return getattr(import_module("django_jobchains.processors"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *__all__]
