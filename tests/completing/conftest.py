import pytest

from django_jobchains.processors import get_registry
from tests.completing import work
from tests.support.connections import end_all
from tests.support.workers import events, make_worker, processors, registry, start_worker

__all__ = ("events", "make_worker", "processors", "registry", "start_worker")


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in work.TYPES})


@pytest.fixture(autouse=True)
def _end_actors():
    yield
    end_all()
