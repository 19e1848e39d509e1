from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from tests.isolation.conftest import SETTINGS
from tests.support.worker_processes import WorkerProcess, started_processes


@pytest.fixture(scope="module")
def transactional_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Flush the database only after the last test of a module, because one worker uses it during all of them."""
    with django_db_blocker.unblock():
        yield
        call_command("flush", interactive=False, verbosity=0, reset_sequences=False, inhibit_post_migrate=True)


@pytest.fixture(scope="module", params=["thread", "process", "transient"])
def isolation(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def worker(isolation: str, transactional_db: None, tmp_path_factory: Any) -> Iterator[WorkerProcess]:
    """A worker process that runs all types in this isolation, for all tests of a module."""
    with started_processes(tmp_path_factory.mktemp("workers"), SETTINGS) as start:
        jobchains = {"ISOLATION": isolation, "POLL_SECONDS": 0.2, "HEARTBEAT_SECONDS": 1}
        yield start("--slots", "4", jobchains=jobchains).until_ready()
