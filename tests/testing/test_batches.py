"""The testing kit runs batches like a worker."""

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.testing import run_due_jobs

pytestmark = pytest.mark.django_db


@pytest.fixture
def sizes(processors):
    """Enqueue five jobs, and return the sizes of the batches that their handler receives."""
    sizes = []

    @processors.register("kit.batch", batch_limit=3)
    def batch(jobs):
        sizes.append(len(jobs))
        with jobs.complete():
            for job in jobs:
                job.finish(job.input)

    chains.enqueue_many([batch.item(number) for number in range(5)])
    return sizes


def test_jobs_of_a_type_are_handled_together(sizes):
    assert len(run_due_jobs()) == 5
    assert sizes == [3, 2]
    assert sorted(Job.objects.values_list("output", flat=True)) == [0, 1, 2, 3, 4]


def test_the_limit_counts_jobs(sizes):
    assert len(run_due_jobs(limit=4)) == 4
    assert sizes == [3, 1]
