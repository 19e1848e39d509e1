import pytest

from django_jobchains import testing
from tests.support.workers import events, make_worker, patient_stop, processors, registry, start_worker, store

__all__ = ("clock", "events", "make_worker", "patient_stop", "processors", "registry", "start_worker", "store")


@pytest.fixture
def clock():
    with testing.clock() as clock:
        yield clock
