from typing import Any

import pytest
from django.urls import clear_url_caches

from django_jobchains.processors import JobType, get_registry
from tests.admin.dashboard.conftest import Beating, beat
from tests.admin.visibility.world import OWN, RIVAL, SITES, WAYS, make_world, urls

__all__ = ("Beating", "beat")


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    own: JobType[Any, Any] = JobType(OWN, continues_with=[OWN])
    declared = {OWN: own, **{name: JobType(name) for name in (RIVAL, "rival.step")}}
    monkeypatch.setattr(get_registry(), "declared", declared)


@pytest.fixture(params=WAYS)
def way(request, settings):
    """Use a site that hides the rows of the rival, in each of two ways."""
    settings.ROOT_URLCONF = urls(SITES[request.param])
    clear_url_caches()
    yield request.param
    clear_url_caches()


@pytest.fixture
def world(db):
    return make_world()
