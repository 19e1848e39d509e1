"""A handler in a child process that does not stop is killed, and its job and its slot are free again."""

import os
import signal
from datetime import timedelta

import psutil
import pytest
from django.utils.timezone import now

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.notifications import get_notifier, ownership_lost
from tests.isolation.app import hostile_jobs
from tests.isolation.ends import ended, expire_lease, failures, labels, output
from tests.shop.models import Effect
from tests.support.waiting import until

pytestmark = pytest.mark.slow

#: The timeout of ``hostile_jobs.limited``.
LIMIT = timedelta(seconds=2)


def pid_of(job_id, what):
    """Return the process id that a handler has stored."""
    until(lambda: Effect.objects.filter(job_id=job_id, label__startswith=what).exists(), 20)
    return int(Effect.objects.get(job_id=job_id, label__startswith=what).label.split()[-1])


def has_ended(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("way", ["heeds SIGTERM", "deaf to SIGTERM"])
def test_one_that_hangs_has_failed_once_by_its_timeout(start_isolated, way):
    worker = start_isolated("--slots", "1", jobchains={"STUCK_SECONDS": 0.1})
    chain = hostile_jobs.hangs.enqueue(way)
    neighbour = hostile_jobs.good.enqueue(0)
    attempts = output(chain)  # On a busy machine, an attempt that returns at once may reach its timeout too.
    found = failures(chain)
    assert [kind for kind, _ in found] == ["timeout"] * (attempts - 1)
    assert all("timed out" in error for _, error in found)
    assert attempts > 1
    assert chain.jobs.get().crashes == 0
    output(neighbour)
    assert "is stuck" not in worker.output  # its handler is killed, not abandoned


def test_the_time_limit_begins_when_the_child_process_begins(start_isolated):
    start_isolated("--type", "isolation.limited")
    child = psutil.Process(output(hostile_jobs.limited.enqueue()))
    child.suspend()  # like a machine that is too busy to run it
    chain = hostile_jobs.limited.enqueue()
    try:
        until(lambda: (claimed_at := chain.jobs.get().last_attempt_at) and now() - claimed_at > 1.5 * LIMIT, 20)
    finally:
        child.resume()
    assert output(chain) == child.pid
    assert failures(chain) == []


def take_away(chain):
    Job.objects.filter(pk=chain.id).update(lease_number=99)
    get_notifier("default").publish([ownership_lost(chain.id)])


@pytest.mark.parametrize("interfere", [chains.cancel, take_away])
def test_one_whose_job_is_cancelled_or_taken_away_is_killed(start_isolated, interfere):
    start_isolated()
    chain = hostile_jobs.hangs_for_ever.enqueue()
    pid = pid_of(chain.id, "started")
    until(lambda: (interfere(chain), has_ended(pid))[1], 20)
    assert interfere is take_away or ended(chain).status == "cancelled"
    assert failures(chain) == []


def test_a_stopping_worker_kills_it_and_hands_its_job_back(start_isolated):
    jobchains = {"SHUTDOWN_SECONDS": 0.2, "ISOLATION": "process"}
    worker = start_isolated(jobchains=jobchains, STOP_SECONDS="10")
    chain = hostile_jobs.grandchild.enqueue()
    pid = pid_of(chain.id, "child")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    job = chain.jobs.get()
    assert (job.status, job.attempt, job.crashes) == ("pending", 0, 0)
    assert failures(chain) == []
    assert "Still running" not in worker.output  # it was killed before its job was returned to the queue
    until(lambda: has_ended(pid), 10)


def test_children_and_their_children_die_with_a_killed_worker(start_isolated):
    jobchains = {"ISOLATION": "process", "REAP_SECONDS": 0.2}
    worker = start_isolated(jobchains=jobchains)
    chain = hostile_jobs.grandchild.enqueue()
    pids = [pid_of(chain.id, "child"), pid_of(chain.id, "grandchild")]
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: all(has_ended(pid) for pid in pids), 10)
    expire_lease(chain.id)
    start_isolated("--type", "isolation.good", jobchains=jobchains)
    until(lambda: [kind for kind, _ in failures(chain)] == ["crash"], 20)
    assert chain.jobs.get().crashes == 1


def test_a_handler_that_holds_the_interpreter_keeps_its_lease(start_isolated):
    jobchains = {"REAP_SECONDS": 0.1}
    start_isolated(jobchains=jobchains)
    start_isolated("--type", "isolation.good", jobchains=jobchains)
    chain = hostile_jobs.hogs.enqueue()
    assert output(chain) == 1
    assert failures(chain) == []
    assert labels(chain) == []
