import pytest

from django_jobchains.processors import JobType, get_registry
from tests.admin.browsing import browser
from tests.admin.visibility.world import OWN, PEOPLE, RIVAL, SITES, make_world
from tests.support.fixtures import url_configuration


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    types = [JobType(OWN, continues_with=[OWN]), JobType(RIVAL), JobType("rival.step")]
    monkeypatch.setattr(get_registry(), "declared", {each.name: each for each in types})


@pytest.fixture(params=SITES)
def way(request):
    """Use a site that hides the rows of the rival, in each of two ways."""
    with url_configuration(SITES[request.param]):
        yield request.param


@pytest.fixture(params=["chain", "job"])
def model(request):
    return request.param


@pytest.fixture
def world(db):
    return make_world()


@pytest.fixture
def operator(db):
    return browser(*PEOPLE["may do all"])


@pytest.fixture
def reader(db):
    return browser("view_chain", "view_job")
