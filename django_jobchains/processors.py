"""Names for declaring job types, and for the functions that handle them.

An app declares its job types in a module ``jobs``, with ``processors = Processors()`` and
``@processors.register("shop.ship")``. These modules are imported when the apps are ready. The registry is
``apps.get_app_config("django_jobchains").registry``.
"""

from django_jobchains.declare.job_types import Item, JobType, Processor
from django_jobchains.declare.limits import Concurrency, Rate
from django_jobchains.declare.policies import Backoff, BackoffFunction, Lease, Retention
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.declare.slices import Processors
from django_jobchains.exceptions import FailJob, RescheduleJob
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.handlers.batch import Batch, BatchJob
from django_jobchains.handlers.running_job import Continuation, RunningJob
from django_jobchains.http_retries import retry_after, retryable_http_status
from django_jobchains.payloads.types import PayloadType
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.on_failure import FailedJob

__all__ = (
    "AbortSignal",
    "Backoff",
    "BackoffFunction",
    "Batch",
    "BatchJob",
    "Concurrency",
    "Continuation",
    "Deduplicate",
    "FailJob",
    "FailedJob",
    "Item",
    "JobType",
    "Lease",
    "PayloadType",
    "Processor",
    "Processors",
    "Rate",
    "Registry",
    "RescheduleJob",
    "Retention",
    "RunningJob",
    "get_registry",
    "retry_after",
    "retryable_http_status",
)
