import pytest

from django_jobchains.telemetry import DetailEvent, add_sink, probes, remove_sink
from tests.support.tracing import recorded

__all__ = ("recorded",)


@pytest.fixture
def ship(processors):
    """A type whose handler does nothing."""
    return processors.register("ship")(lambda job: None)


class Facts(list):
    def of(self, *kinds):
        return [event for event in self if isinstance(event, kinds)]


@pytest.fixture
def facts():
    """All events, also those that are created only on request."""
    facts = Facts()
    add_sink(facts.append, DetailEvent)
    yield facts
    remove_sink(facts.append)


@pytest.fixture
def add_worker():
    """Adds workers to this process, until the end of the test."""
    added = []

    def add(worker):
        added.append(worker)
        probes.add_worker(worker)

    yield add
    for worker in added:
        probes.remove_worker(worker)
