import pytest

from django_jobchains import testing
from tests.interventions.conftest import _declared_types

__all__ = ("_declared_types",)


@pytest.fixture
def clock():
    """The database's clock, which a test can advance."""
    with testing.clock() as clock:
        yield clock
