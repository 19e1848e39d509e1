"""A child process that dies counts as one crash of its own job, and affects no other job."""

import random
import signal
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest

from django_jobchains import chains
from django_jobchains.children.frames import encode_frame
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.monitoring import overview
from tests.isolation.app import hostile_jobs
from tests.isolation.ends import ended, failures, labels, output
from tests.shop.models import Effect
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("level", ["process", "transient"])
def test_a_child_that_dies_is_one_crash_and_neighbours_complete(start_isolated, level):
    ways = {"SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV", "exit": "exited with code 3"}
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


def test_the_limits_of_an_isolation_apply(start_isolated):
    start_isolated()
    allocates, burns = hostile_jobs.allocates.enqueue(), hostile_jobs.metered.enqueue("burn")
    assert output(allocates) == 2
    [(kind, error)] = failures(allocates)
    assert (kind, error.partition(":")[0], allocates.jobs.get().crashes) == ("error", "MemoryError", 0)
    assert output(burns)
    [(kind, error)] = failures(burns)
    assert (kind, "SIGXCPU" in error) == ("crash", True)


def pool_of(key):
    [worker] = overview().workers
    return next(pool for pool in worker.pools if pool.key == key)


def test_the_row_of_a_worker_reports_each_pool_with_its_children_and_their_deaths(start_isolated):
    start_isolated("--slots", "6", jobchains={"ISOLATION": "process", "HEARTBEAT_SECONDS": 0.2})
    assert output(hostile_jobs.dies.enqueue("SIGKILL")) == 2
    attempts = output(hostile_jobs.hangs.enqueue("heeds SIGTERM"))
    until(lambda: (pool_of("default").crashed, pool_of("hanging").killed) == (1, attempts - 1), 60, overview)
    default, hanging = pool_of("default"), pool_of("hanging")
    assert (default.level, default.workers, default.killed, default.recycled) == ("process", 1, 0, 0)
    assert (hanging.crashed, hanging.max_workers, hanging.is_saturated) == (0, 4, False)
    assert default.rss_bytes == default.largest_rss_bytes > 10 * 1024**2
    for _ in range(4):
        hostile_jobs.hangs_for_ever.enqueue()
    until(lambda: pool_of("hanging").is_saturated, 60, overview)
    assert pool_of("hanging").busy == 4


def test_jobs_whose_children_are_killed_at_random_have_their_effects_once(start_isolated):
    worker = start_isolated("--slots", "4", jobchains={"ISOLATION": "process"})
    chains.enqueue_many([hostile_jobs.good.item(0.05) for _ in range(200)])
    until(Effect.objects.exists, 60)
    for _ in range(200):
        kill_a_child(worker)
        if not Job.objects.exclude(status="completed").exists():
            break
        time.sleep(0.5)
    assert Counter(Job.objects.values_list("status", flat=True)) == {"completed": 200}
    assert Effect.objects.values("job_id").distinct().count() == Effect.objects.count() == 200
    assert set(FailedAttempt.objects.values_list("kind", flat=True)) <= {"crash"}
    assert worker.is_alive


def kill_a_child(worker):
    [preload] = psutil.Process(worker.pid).children()
    if children := preload.children():
        with suppress(psutil.NoSuchProcess):
            random.choice(children).kill()


def test_what_was_logged_before_a_crash_is_kept(start_isolated):
    start_isolated(jobchains={"ISOLATION": "process"})
    chain = hostile_jobs.logs_and_dies.enqueue()
    until(lambda: [kind for kind, _ in failures(chain)] == ["crash"], 20)
    until(lambda: [line.text for line in chain.jobs.get().log_lines.all()] == ["about to die"], 10)


def test_a_reply_that_cannot_be_read_is_a_crash(start_isolated):
    """The handler was called, so it must not be called any number of times."""
    start_isolated(jobchains={"ISOLATION": "process", "MAX_CRASHES": 2})
    junk = encode_frame({"junk": 1})[:-1] + b"!"
    written = [hostile_jobs.writes_to_its_socket.enqueue(each) for each in (junk.hex(), "")]
    for chain in map(ended, [*written, hostile_jobs.says_too_much.enqueue()]):
        assert (chain.status, labels(chain)) == ("failed", ["called"] * 2)
        assert [kind for kind, _ in failures(chain)] == ["crash"] * 2
        assert "cannot be read" in failures(chain)[0][1]


def test_an_attempt_that_has_committed_has_not_lost_its_lease(start_isolated, tmp_path):
    """The worker checks its leases between the commit in a child and its reply. Another job is completed by hand."""
    worker = start_isolated("--slots", "6", jobchains={"ISOLATION": "process"})
    gate = tmp_path / "gate"
    committed = hostile_jobs.waits_after_commit.enqueue(str(gate))
    by_hand = hostile_jobs.hangs_for_ever.enqueue()
    until(lambda: labels(by_hand) and output(committed) == "committed", 60)
    chains.complete(by_hand, "by hand")
    until(lambda: f"{by_hand.id} lost its lease" in worker.output, 60, lambda: worker.output)
    gate.touch()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert f"{committed.id}" not in worker.output
    assert "Stopped: 1 completed." in worker.output
    assert (failures(committed), failures(by_hand)) == ([], [])


def test_a_child_that_dies_after_its_commit_leaves_the_job_completed(start_isolated):
    worker = start_isolated(jobchains={"ISOLATION": "process"})
    assert output(hostile_jobs.good.enqueue(0)) != worker.pid  # a worker checks its leases when it begins to listen
    chain = hostile_jobs.dies_after_commit.enqueue()
    assert output(chain) == "committed"
    assert labels(chain) == ["written"]
    assert output(hostile_jobs.good.enqueue(0)) != worker.pid  # the slot survives
    job = chain.jobs.get()
    assert (job.status, job.crashes, failures(chain)) == ("completed", 0, [])
    assert str(chain.id) not in worker.output  # it is reported neither as crashed nor as lost


def test_each_job_of_a_batch_that_dies_has_crashed_once(start_isolated):
    start_isolated(jobchains={"ISOLATION": "process"})
    started = chains.enqueue_many([hostile_jobs.batch_dies.item() for _ in range(3)])
    assert [output(chain) for chain in started] == [None] * 3
    assert sum(len(failures(chain)) for chain in started) >= 1
    assert {kind for chain in started for kind, _ in failures(chain)} == {"crash"}
