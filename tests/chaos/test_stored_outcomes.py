"""Locks prevent workers from writing for long: deferred outcomes survive kills, and health probes succeed."""

import signal

import pytest
from django.db.models.functions import Now

from django_jobchains import chains
from django_jobchains.models import DeferredWrite, FailedAttempt, Job
from tests.chaos.open_transactions import transaction_that_locks
from tests.chaos.oracle import kill
from tests.shop.models import Effect
from tests.support.waiting import stays, until
from tests.support.worker_app import jobs
from tests.support.worker_processes import ask, free_port

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

JOBS = 10
#: The tests wait for the end of the leases, but no worker may lose one because the machine is busy.
LEASE_SECONDS = "4"


def start_gated_jobs(count):
    """Start jobs that run until ``let_them_return()``."""
    started = chains.enqueue_many([jobs.gated.item("go on") for _ in range(count)])
    until(lambda: Effect.objects.filter(label="started").count() == count, 30)
    return started


def let_them_return():
    Effect.objects.create(job_id=Job.objects.earliest("id").id, label="go on")


def stored_outcomes():
    return list(DeferredWrite.objects.filter(kind="outcome").values_list("outcome__ending", flat=True))


def assert_ran(chain, *, times, crashes=0):
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.crashes) == ("completed", 1 + crashes, crashes)
    assert Effect.objects.filter(job_id=chain.id, label="started").count() == times
    assert FailedAttempt.objects.filter(job_id=chain.id).count() == crashes


@pytest.mark.parametrize("ending", ["completed", "handed_back"])
def test_outcomes_of_a_stopped_worker_survive_the_worker_that_applies_them(start_process, ending):
    """The second worker is killed after it has applied some of them. No attempt and no crash is counted for it."""
    seconds = "20" if ending == "completed" else "0.1"
    options = ("--slots", str(JOBS), "--shutdown-timeout", seconds)
    first = start_process(*options, LEASE_SECONDS=LEASE_SECONDS).until_ready()
    started = start_gated_jobs(JOBS)
    some, others = started[: JOBS // 2], started[JOBS // 2 :]
    with transaction_that_locks(*others):
        with transaction_that_locks(*some):
            if ending == "completed":
                let_them_return()
            first.signal(signal.SIGTERM)
            assert first.wait() == 0
            assert stored_outcomes() == [ending] * JOBS
            let_them_return()
            second = start_process("--slots", str(JOBS), LEASE_SECONDS=LEASE_SECONDS).until_ready()
            until_the_leases_have_ended()
            assert stays(lambda: stored_outcomes() == [ending] * JOBS, 1)
        until_all_completed(some, second)
        assert kill(second) == set()
        third = start_process("--slots", str(JOBS), LEASE_SECONDS=LEASE_SECONDS).until_ready()
        assert stays(lambda: stored_outcomes() == [ending] * len(others), 1)
    until_all_completed(started, third)
    for chain in started:
        assert_ran(chain, times=1 if ending == "completed" else 2)
    assert stored_outcomes() == []


def until_all_completed(chains, process):
    left = Job.objects.filter(id__in=[chain.id for chain in chains]).exclude(status="completed")
    until(lambda: not left.exists(), 30, lambda: (list(left.values()), process.output))


def until_the_leases_have_ended():
    """Only their stored outcomes prevent the running jobs from being reclaimed."""
    until(lambda: not Job.objects.filter(status="running", leased_until__gte=Now()).exists(), 20)
    until(lambda: not DeferredWrite.objects.filter(kind="lease", leased_until__gte=Now()).exists(), 20)


@pytest.mark.parametrize("returns", [True, False])
def test_a_killed_worker_costs_its_locked_job_one_crash(start_process, returns):
    """This is so whether the handler ran or had returned, because the memory of a worker is lost with it."""
    first = start_process("--slots", "2", LEASE_SECONDS=LEASE_SECONDS).until_ready()
    [chain] = start_gated_jobs(1)
    with transaction_that_locks(chain):
        if returns:
            let_them_return()
            until(lambda: Effect.objects.filter(label="returned").exists(), 20)
        until(lambda: DeferredWrite.objects.filter(kind="lease").exists(), 20)
        assert kill(first) == {(chain.id, 1)}
        second = start_process("--slots", "2", LEASE_SECONDS=LEASE_SECONDS).until_ready()
        until_the_leases_have_ended()
        assert stays(lambda: chain.refresh().status == "running", 1)
    let_them_return()
    until_all_completed([chain], second)
    assert_ran(chain, times=2, crashes=1)


#: A worker is not live, and not ready, if one of its steps takes longer. The leases of the jobs last as long.
LIMIT_SECONDS = 6.0
HELD_SECONDS = 10.0


def test_a_long_lock_fails_no_health_probe(start_process):
    """Jobs are locked that run, that have returned, or that wait for the lock in ``complete()``."""
    port = free_port()
    process = start_process(
        *("--slots", "6", "--health-port", str(port)),
        jobchains={"LIVENESS_SECONDS": LIMIT_SECONDS, "HEARTBEAT_SECONDS": 0.5},
        READY_SECONDS=str(LIMIT_SECONDS),
        LEASE_SECONDS=str(LIMIT_SECONDS),
    ).until_ready()
    locked = runs, returns, completes = [jobs.gated.enqueue("end"), jobs.gated.enqueue("return"), jobs.hold.enqueue()]
    until(lambda: Effect.objects.filter(label__startswith="started").count() == len(locked), 20)
    until(lambda: probes(port) == [200, 200], 20, lambda: ask(port, "/"))
    unrelated = Job.objects.filter(type_name="chaos.nothing")

    def is_green():
        jobs.nothing.enqueue(None)
        return probes(port) == [200, 200]

    with transaction_that_locks(*locked):
        Effect.objects.create(job_id=returns.id, label="return")
        Effect.objects.create(job_id=completes.id, label="go on")
        assert stays(is_green, HELD_SECONDS), (ask(port, "/"), process.output)
        until(lambda: not unrelated.exclude(status="completed").exists(), 10, lambda: process.output)
        assert [chain.refresh().status for chain in locked] == ["running"] * 3
        assert probes(port) == [200, 200]
    Effect.objects.create(job_id=runs.id, label="end")
    until(lambda: not Job.objects.exclude(status="completed").exists(), 20, lambda: process.output)
    assert set(Job.objects.values_list("attempt", "crashes", "lease_number")) == {(1, 0, 1)}
    assert Effect.objects.filter(label__startswith="started").count() == len(locked)
    assert not FailedAttempt.objects.exists()


def probes(port):
    return [ask(port, path)[0] for path in ("/live", "/ready")]
