import pytest
from django.apps import apps

from django_jobchains.telemetry import probes
from tests.support.tracing import recorded

__all__ = ("recorded",)


@pytest.fixture
def _of_project(registry, monkeypatch):
    """The registry of the test is that of the project, whose records are counted."""
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)


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
