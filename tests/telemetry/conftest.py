import pytest
from django.apps import apps

from django_jobchains.processors import Registry
from tests.support.tracing import recorded
from tests.support.workers import events, make_worker, processors, registry, start_worker, store

__all__ = ("events", "make_worker", "processors", "recorded", "registry", "start_worker", "store")


@pytest.fixture
def _of_project(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of the test is that of the project, whose records are counted."""
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
