"""Two workers on PostgreSQL above READ COMMITTED: conflicts are expected and are not reported."""

import pytest
from django.db.models import Count

from django_jobchains import chains
from django_jobchains.models import Job
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql, pytest.mark.slow]

JOBS = 6_000
#: The share of a worker that no conflict blocks. It is far below a half, because one of them may be slower.
FAIR_SHARE = JOBS // 20


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("of", ["transactions", "every statement"])
def test_two_workers_share_the_jobs_and_report_no_conflict(start_process, of, level):
    environment = {
        "transactions": {"JOBCHAINS_TEST_ISOLATION": level.replace(" ", "_")},
        "every statement": {"PGOPTIONS": "-c default_transaction_isolation=" + level.lower().replace(" ", "\\ ")},
    }[of]
    workers = [start_process("--slots", "4", **environment).until_ready() for _ in range(2)]

    def are_shared() -> bool:
        """Run jobs until both workers have had their share: one of them may stop for a moment on a busy machine."""
        chains.enqueue_many([jobs.nothing.item() for _ in range(JOBS)])
        until(lambda: not Job.objects.exclude(status="completed").exists(), 60, lambda: workers[0].output)
        counts = Job.objects.values("completed_by").annotate(jobs=Count("id")).values_list("jobs", flat=True)
        return len(counts) == 2 and min(counts) > FAIR_SHARE

    until(are_shared, 30)
    assert "failed" not in "".join(worker.output for worker in workers)
