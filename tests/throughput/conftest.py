import pytest

from django_jobchains import testing


@pytest.fixture
def clock():
    with testing.clock() as clock:
        yield clock
