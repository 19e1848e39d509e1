import pytest
from django.test import Client
from django.urls import reverse

from django_jobchains.models import Job


@pytest.fixture
def open_page(superuser):
    """Return a function that returns a page as HTML: of a job's chain or with ``model="job"`` of the job itself."""

    def open_page(job: Job, model: str = "chain", by: Client | None = None, **parameters: str | int) -> str:
        id_ = job.chain_id if model == "chain" else job.id
        reply = (by or superuser).get(reverse(f"admin:django_jobchains_{model}_change", args=[id_]), parameters)
        assert reply.status_code == 200, reply
        return str(reply.content.decode())

    return open_page
