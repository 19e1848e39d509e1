from typing import Any
from uuid import UUID

import pytest
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Processors, Registry
from django_jobchains.worker import Worker
from tests.support.attempts import WITHOUT_WAKE_UPS, on_own_connection
from tests.support.databases import sqlite_database
from tests.support.scenario import scenario

__all__ = ("scenario",)


@pytest.fixture(autouse=True)
def _no_wake_ups(settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS


@pytest.fixture
def processors():
    """Processors whose jobs are retried after 100 seconds, which is after the test."""
    return Processors(backoff=Backoff(initial_seconds=100, jitter=0))


@pytest.fixture
def work(processors):
    """Return a function that runs all due jobs of ``processors``, or of the processors that it gets."""

    def run(*parts: Processors, slots: int = 2, **options: Any) -> None:
        registry = Registry()
        for part in parts or (processors,):
            registry.add(part)
        Worker(slots=slots, registry=registry, **options).run_until_idle()

    return run


@pytest.fixture
def steal():
    """Return a function that changes a job's lease number over another connection, as another worker's claim does."""

    def bump(job_id: UUID) -> None:
        Job.objects.filter(pk=job_id).update(lease_number=F("lease_number") + 1)

    return lambda job_id: on_own_connection(bump, job_id)


@pytest.fixture
def second_alias(tmp_path, transactional_db, django_db_blocker):
    """The alias of a second database, which is a SQLite file."""
    with sqlite_database("second", str(tmp_path / "second.sqlite3"), django_db_blocker) as alias:
        yield alias
