from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Processors, Registry
from django_jobchains.worker import Worker
from tests.attempts.work import WITHOUT_WAKE_UPS, Work, elsewhere


@pytest.fixture(autouse=True)
def _no_wake_ups(settings: Any) -> None:
    settings.JOBCHAINS = WITHOUT_WAKE_UPS


@pytest.fixture
def processors() -> Processors:
    """A slice whose failed jobs come back after the test."""
    return Processors(backoff=Backoff(initial_seconds=100, jitter=0))


@pytest.fixture
def work(processors: Processors) -> Work:
    """Runs what is due: ``work()``, or ``work(other_slice, slots=1, …)`` with the arguments of a Worker."""

    def run(*slices: Processors, slots: int = 2, **options: Any) -> None:
        registry = Registry()
        for part in slices or (processors,):
            registry.add(part)
        Worker(slots=slots, registry=registry, **options).run_until_idle()

    return run


@pytest.fixture
def steal() -> Callable[[UUID], None]:
    """Takes a running job away, over another connection, as the claim of another worker would."""

    def bump(job_id: UUID) -> None:
        Job.objects.filter(pk=job_id).update(lease_number=F("lease_number") + 1)

    return lambda job_id: elsewhere(bump, job_id)


@pytest.fixture
def second_alias(tmp_path: Path, transactional_db: None, django_db_blocker: Any) -> Iterator[str]:
    """Another database of the project: an SQLite file, whatever the first one is."""
    alias = "second"
    connections.settings[alias] = {
        **connections["default"].settings_dict,
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "second.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
    with django_db_blocker.unblock():  # the alias is newer than the list of those that this test may use
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
        yield alias
    connections[alias].close()
    del connections[alias]
    del connections.settings[alias]
