import pytest

from django_jobchains.processors import Backoff, Processors


@pytest.fixture
def processors(registry):
    """Processors whose failed jobs are due again at once."""
    part = Processors(backoff=Backoff(0, 1, 0, 0))
    registry.add(part)
    return part
