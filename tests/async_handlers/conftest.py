from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Processors, Registry
from django_jobchains.worker import Worker
from tests.attempts.work import WITHOUT_WAKE_UPS, Work, elsewhere
from tests.worker.fixtures import events, make_worker, processors, registry, start_worker, store
from tests.worker.processes import start_process

__all__ = ("events", "make_worker", "processors", "registry", "start_process", "start_worker", "store")


@pytest.fixture
def once(registry: Registry) -> Processors:
    """A slice whose failed jobs come back after the test."""
    part = Processors(backoff=Backoff(initial_seconds=100, jitter=0))
    registry.add(part)
    return part


@pytest.fixture
def work(registry: Registry, settings: Any) -> Work:
    """Runs what is due, with the arguments of a Worker."""

    def run(**options: Any) -> None:
        settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "ASYNC_THREADS": 2}
        Worker(slots=1, registry=registry, **options).run_until_idle()

    return run


@pytest.fixture
def steal() -> Callable[[UUID], None]:
    """Takes a running job away, over another connection, as the claim of another worker would."""

    def bump(job_id: UUID) -> None:
        Job.objects.filter(pk=job_id).update(lease_number=F("lease_number") + 1)

    return lambda job_id: elsewhere(bump, job_id)
