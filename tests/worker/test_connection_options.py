"""Options of Django's PostgreSQL connections that change how statements are sent and connections are closed."""

import json
import signal

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

JOBS = 30


@pytest.mark.parametrize(
    "options",
    [{"pool": {"min_size": 1, "max_size": 9}}, {"server_side_binding": True}],
    ids=["pool", "server_side_binding"],
)
def test_worker_runs_with_the_option(start_process, options):
    """The worker runs handlers that return a value, write, and continue their chain."""
    worker = start_process("--slots", "3", JOBCHAINS_TEST_DATABASE_OPTIONS=json.dumps(options)).until_ready()
    chains.enqueue_many([jobs.nothing.item() for _ in range(JOBS)])
    chains.enqueue_many([jobs.write.item(0) for _ in range(JOBS)])
    chains.enqueue_many([jobs.step.item(1) for _ in range(JOBS)])
    until(lambda: Job.objects.filter(status="completed").count() == 4 * JOBS, 30, lambda: worker.output)
    assert Effect.objects.count() == 3 * JOBS
    assert not FailedAttempt.objects.exists()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "closed connection" not in worker.output
