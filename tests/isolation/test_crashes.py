"""A child process that dies counts as one crash of its own job, and affects no other job."""

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt
from tests.isolation.app import hostile_jobs
from tests.isolation.ends import ended, failures, labels, output
from tests.support.waiting import until
from tests.support.worker_processes import StartProcess

LEVELS = ("process", "transient")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("level", LEVELS)
def test_every_way_to_die_is_one_crash_and_neighbours_complete(start_isolated: StartProcess, level: str) -> None:
    ways = {"SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV", "exit": "exited with code 3", "recursion": "SIGSEGV"}
    worker = start_isolated("--slots", "4", jobchains={"ISOLATION": level})
    neighbours = chains.enqueue_many([hostile_jobs.good.item(0.05) for _ in range(20)])
    dying = {way: hostile_jobs.dies.enqueue(way) for way in ways}
    for way, reason in ways.items():
        assert output(dying[way]) == 2
        [(kind, error)] = failures(dying[way])
        assert kind == "crash"
        assert reason in error
        assert dying[way].jobs.get().crashes == 1
        assert "the last words" in FailedAttempt.objects.get(job_id=dying[way].id).traceback
    for chain in neighbours:
        assert output(chain) != worker.pid
        assert labels(chain) == ["written"]
        assert failures(chain) == []
    assert worker.is_alive


def test_what_was_logged_before_a_crash_is_kept(start_isolated: StartProcess) -> None:
    start_isolated(jobchains={"ISOLATION": "process"})
    chain = hostile_jobs.logs_and_dies.enqueue()
    until(lambda: [kind for kind, _ in failures(chain)] == ["crash"], 20)
    until(lambda: [line.text for line in chain.jobs.get().log_lines.all()] == ["about to die"], 10)


def test_a_job_that_crashes_each_time_fails_at_the_limit_of_crashes(start_isolated: StartProcess) -> None:
    start_isolated(jobchains={"ISOLATION": "process", "MAX_CRASHES": 3})
    chain = ended(hostile_jobs.always_dies.enqueue())
    job = chain.jobs.get()
    assert (chain.status, job.crashes, job.attempt) == ("failed", 3, 3)
    assert [kind for kind, _ in failures(chain)] == ["crash"] * 3


def test_a_child_that_dies_after_its_commit_leaves_the_job_completed(start_isolated: StartProcess) -> None:
    worker = start_isolated(jobchains={"ISOLATION": "process"})
    assert output(hostile_jobs.good.enqueue(0)) != worker.pid  # a worker checks its leases when it begins to listen
    chain = hostile_jobs.dies_after_commit.enqueue()
    assert output(chain) == "committed"
    assert labels(chain) == ["written"]
    assert output(hostile_jobs.good.enqueue(0)) != worker.pid  # the slot survives
    job = chain.jobs.get()
    assert (job.status, job.crashes, failures(chain)) == ("completed", 0, [])
    assert str(chain.id) not in worker.output  # it is reported neither as crashed nor as lost


def test_each_job_of_a_batch_that_dies_has_crashed_once(start_isolated: StartProcess) -> None:
    start_isolated(jobchains={"ISOLATION": "process"})
    started = chains.enqueue_many([hostile_jobs.batch_dies.item() for _ in range(3)])
    assert [output(chain) for chain in started] == [None] * 3
    assert sum(len(failures(chain)) for chain in started) >= 1
    assert {kind for chain in started for kind, _ in failures(chain)} == {"crash"}


def test_a_memory_limit_is_an_ordinary_error(start_isolated: StartProcess) -> None:
    start_isolated()
    chain = hostile_jobs.allocates.enqueue()
    assert output(chain) == 2
    [(kind, error)] = failures(chain)
    assert (kind, error.partition(":")[0]) == ("error", "MemoryError")
    assert chain.jobs.get().crashes == 0
