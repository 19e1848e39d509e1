import pytest

from django_jobchains.models import JobProgress, LogLine
from django_jobchains.processors import Backoff, Processors


def lines(chain):
    return list(LogLine.objects.filter(job__chain_id=chain.id).order_by("job_id", "lease_number", "position"))


def texts(chain):
    return [line.text for line in lines(chain)]


def progress(chain):
    row = JobProgress.objects.get(job__chain_id=chain.id)
    return row.fraction, row.text


@pytest.fixture
def processors(db, registry):
    registry.add(part := Processors(backoff=Backoff(0.02, 1, 0.02, 0)))
    return part


@pytest.fixture
def run_job(processors, jobchains):
    """Return a function that runs a job that calls a function, and returns its chain."""

    def run(function):
        @processors.register("notes.logging")
        def handler(job):
            function(job)

        chain = handler.enqueue()
        jobchains.run_due_jobs(raise_errors=True)
        return chain

    return run
