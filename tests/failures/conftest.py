import pytest

from django_jobchains.processors import Backoff, Processors
from django_jobchains.store import get_store
from django_jobchains.worker import Worker
from tests.support.attempts import WITHOUT_WAKE_UPS


@pytest.fixture(autouse=True)
def _no_wake_ups(settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS


@pytest.fixture
def processors(registry):
    """Processors whose jobs are retried after 100 seconds, which is after the test."""
    part = Processors(backoff=Backoff(initial_seconds=100, jitter=0))
    registry.add(part)
    return part


@pytest.fixture
def store(transactional_db):
    return get_store()


@pytest.fixture
def work(registry):
    """Return a function that runs jobs until none is due."""

    def run(**options):
        Worker(slots=1, **options).run_until_idle()

    return run
