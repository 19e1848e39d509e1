import pytest

from django_jobchains.processors import get_registry
from tests.support.chain_shapes import DECLARED


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in DECLARED})


@pytest.fixture(params=["chain", "job"])
def model(request):
    return request.param
