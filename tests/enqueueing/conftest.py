import pytest


@pytest.fixture(autouse=True)
def _sent(sent):
    """Record the wake-ups of every test."""
