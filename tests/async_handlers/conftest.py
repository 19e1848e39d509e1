from typing import Any

import pytest

from django_jobchains.processors import Backoff, Processors
from django_jobchains.worker import Worker
from tests.support.attempts import WITHOUT_WAKE_UPS
from tests.support.worker_processes import start_patient_process as start_process

__all__ = ("start_process",)


@pytest.fixture
def once(registry):
    """Processors whose jobs are retried after 100 seconds, which is after the test."""
    part = Processors(backoff=Backoff(initial_seconds=100, jitter=0))
    registry.add(part)
    return part


@pytest.fixture
def work(registry, settings):
    """Return a function that runs all due jobs in a worker with one slot."""

    def run(**options: Any) -> None:
        settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "ASYNC_THREADS": 2}
        Worker(slots=1, registry=registry, **options).run_until_idle()

    return run
