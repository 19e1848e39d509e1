"""Workers with the registry of the test, and records with every kind of key."""

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps

from django_jobchains.processors import Processors, Registry
from tests.records.models import Upload
from tests.support.worker_processes import start_process
from tests.support.workers import events, make_worker, start_worker

__all__ = ("events", "make_worker", "start_process", "start_worker")


@pytest.fixture
def registry(monkeypatch):
    """The registry of the project, for one test."""
    registry = Registry()
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return registry


@pytest.fixture
def processors(db, registry):
    """Return the only slice of the project."""
    part = Processors()
    registry.add(part)
    return part


@pytest.fixture
def register(processors):
    """Register a function that handles uploads."""

    def register(handle: Callable[..., Any] = lambda record, run: None, **options: Any) -> Any:
        return processors.records(Upload, **options)(handle)

    return register
