import pytest

from django_jobchains.processors import Processors


@pytest.fixture
def processors(registry):
    """Return the only slice of the project for one test."""
    registry.add(processors := Processors())
    return processors
