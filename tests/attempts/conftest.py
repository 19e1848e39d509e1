import pytest

from django_jobchains.processors import Backoff, Processors
from tests.support.attempts import WITHOUT_WAKE_UPS
from tests.support.scenario import scenario

__all__ = ("scenario",)


@pytest.fixture(autouse=True)
def _no_wake_ups(settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS


@pytest.fixture
def processors():
    """Processors whose jobs are retried after 100 seconds, which is after the test."""
    return Processors(backoff=Backoff(initial_seconds=100, jitter=0))
