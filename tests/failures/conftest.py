import pytest

from django_jobchains.processors import Backoff
from django_jobchains.store import get_store
from django_jobchains.worker import Worker
from tests.support.attempts import no_wake_ups
from tests.support.fixtures import only_slice

__all__ = ("no_wake_ups",)


#: Jobs are retried after 100 seconds, which is after the test.
processors = only_slice(backoff=Backoff(initial_seconds=100, jitter=0))


@pytest.fixture
def store(transactional_db):
    return get_store()


@pytest.fixture
def work(registry):
    """Return a function that runs jobs until none is due."""

    def run(**options):
        Worker(slots=1, **options).run_until_idle()

    return run
