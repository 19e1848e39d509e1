"""A worker as a separate process: how it starts, and how it ends by itself."""

import json
import signal
from contextlib import suppress

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.shop.models import Effect
from tests.support.servers.cluster import cluster, server
from tests.support.servers.cluster import start_process as start_process_of_cluster
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import ask, free_port
from tests.support.workers import completed

__all__ = ("cluster", "server", "start_process_of_cluster")

slow = pytest.mark.slow


@slow
def test_burst_max_jobs_and_max_active_end_the_process_with_code_0(start_process):
    chains.enqueue_many([jobs.nothing.item() for _ in range(10)])
    assert start_process("--max-jobs", "4").wait(60) == 0
    assert completed() == 4
    assert start_process("--burst").wait(60) == 0
    assert completed() == 10
    assert start_process("--max-active", "0.1").wait(60) == 0


@slow
def test_worker_that_gives_up_ends_the_process_with_code_1(start_process):
    jobs.nothing.enqueue()
    process = start_process("--burst", FAILING="jobs.claim")
    assert process.wait(60) == 1
    assert "10 in a row), the worker gives up: ValueError" in process.output
    assert Job.objects.with_status("pending").count() == 1


@slow
def test_crash_and_error_are_each_recorded_as_one_failed_attempt(start_process):
    job = jobs.dies_then_fails.enqueue().current_job
    assert start_process().wait(60) == -signal.SIGKILL
    start_process()
    until(lambda: completed(pk=job.pk), 60)
    job.refresh_from_db()
    assert (job.attempt, job.crashes) == (3, 1)
    assert [failed.kind for failed in job.failed_attempts.order_by("attempt")] == ["crash", "error"]


@slow
def test_invalid_notifier_is_reported_before_any_job_runs(start_process):
    job = jobs.write.enqueue(0.2).current_job
    process = start_process(jobchains={"NOTIFIER": {"BACKEND": "no.such.Notifier"}})
    assert process.wait(60) == 1
    assert "NOTIFIER" in process.output
    assert "Traceback" not in process.output
    job.refresh_from_db()
    assert (job.status, job.lease_number) == ("pending", 0)


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "options",
    [{"pool": {"min_size": 1, "max_size": 9}}, {"server_side_binding": True}],
    ids=["pool", "server_side_binding"],
)
def test_worker_runs_with_an_option_of_its_connections(start_process, options):
    """The worker runs handlers that return a value, write, and continue their chain."""
    worker = start_process("--slots", "3", JOBCHAINS_TEST_DATABASE_OPTIONS=json.dumps(options)).until_ready()
    for job_type, input_ in ((jobs.nothing, None), (jobs.write, 0), (jobs.step, 1)):
        chains.enqueue_many([job_type.item(input_) for _ in range(30)])
    until(lambda: completed() == 4 * 30, 30, lambda: worker.output)
    assert Effect.objects.count() == 3 * 30
    assert not FailedAttempt.objects.exists()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "closed connection" not in worker.output


@slow
@pytest.mark.postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("of", ["transactions", "every statement"])
def test_two_workers_share_the_jobs_and_report_no_conflict_above_read_committed(start_process, of, level):
    environment = {
        "transactions": {"JOBCHAINS_TEST_ISOLATION": level.replace(" ", "_")},
        "every statement": {"PGOPTIONS": "-c default_transaction_isolation=" + level.lower().replace(" ", "\\ ")},
    }[of]
    workers = [start_process("--slots", "4", **environment).until_ready() for _ in range(2)]

    def are_shared():
        """Run jobs until each worker has had a twentieth: one of them may stop for a moment on a busy machine."""
        chains.enqueue_many([jobs.nothing.item() for _ in range(6_000)])
        until(lambda: not Job.objects.exclude(status="completed").exists(), 60, lambda: workers[0].output)
        counts = [Job.objects.filter(completed_by=name).count() for name in names()]
        return len(counts) == 2 and min(counts) > 300

    def names():
        return Job.objects.values_list("completed_by", flat=True).distinct()

    until(are_shared, 30)
    assert "failed" not in "".join(worker.output for worker in workers)


@slow
@pytest.mark.postgresql
def test_health_while_the_database_is_down_or_does_not_respond(cluster, start_process_of_cluster):
    port = free_port()
    cluster.stop()
    process = start_process_of_cluster("--health-port", str(port), jobchains={"LIVENESS_SECONDS": 5})
    process.until_output("trying again")
    assert [ask(port, path)[0] for path in ("/live", "/ready")] == [200, 503]
    cluster.start()
    until(lambda: ask(port, "/ready")[0] == 200, 30, lambda: (ask(port, "/"), process.output))
    try:
        cluster.freeze()
        until(lambda: ask(port, "/ready")[0] == 503, 30)
        until(lambda: ask(port, "/live")[0] == 503, 30)
        assert "is busy with one step" in ask(port, "/live")[1]["problems"][0]
    finally:
        cluster.thaw()
    until(lambda: ask(port, "/ready")[0] == 200, 30, lambda: ask(port, "/"))
    assert "Traceback" not in process.output


@slow
@pytest.mark.postgresql
@pytest.mark.parametrize("arguments", [["--queue", "mail"], ["--processes", "1"]])
def test_health_port_responds_before_the_database_does(cluster, start_process_of_cluster, arguments):
    port = free_port()

    def is_live():
        with suppress(ConnectionRefusedError):
            return ask(port, "/live")[0] == 200

    cluster.freeze()
    try:
        process = start_process_of_cluster(*arguments, "--health-port", str(port))
        until(is_live, 30, lambda: process.output)
        assert ask(port, "/ready")[0] == 503
        process.until_output("trying again")
    finally:
        cluster.thaw()
    until(lambda: ask(port, "/ready")[0] == 200, 30, lambda: (ask(port, "/"), process.output))
