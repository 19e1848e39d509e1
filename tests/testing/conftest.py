import pytest
from django.apps import apps

from django_jobchains.processors import Processors, Registry


@pytest.fixture
def processors(monkeypatch):
    """Return the only slice of the project for one test."""
    registry = Registry()
    processors = Processors()
    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return processors
