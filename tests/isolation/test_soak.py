"""Many jobs run, and some of them crash, hang or exceed their memory limit, while workers are killed.

``JOBCHAINS_SOAK_JOBS=20000`` runs that many jobs. They took three and a half minutes on two cores.
"""

import os
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import cycle, islice
from statistics import median

import psutil
import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.isolation.app import hostile_jobs
from tests.shop.models import Effect
from tests.support.waiting import until

JOBS = int(os.environ.get("JOBCHAINS_SOAK_JOBS", "300"))
#: A worker is killed each time this many jobs have completed.
JOBS_PER_KILL = max(JOBS // 8, 100)
#: After this many jobs, the worker that is never killed should not grow any further.
WARM_UP_JOBS = max(JOBS // 3, JOBS_PER_KILL)
#: Of a hundred jobs, two crash, one hangs and one exceeds its memory limit.
INPUTS = ("SIGSEGV", *["good"] * 32, "hang", *["good"] * 32, "memory", *["good"] * 16, "SIGSEGV", *["good"] * 16)
#: The default number of jobs shows what leaks with each job. What leaks with each crash takes more jobs to notice.
MAX_GROWTH = 20 * 1024**2
MAX_MORE_DESCRIPTORS = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + JOBS)]


def test_every_job_completes_once_and_nothing_is_left(start_isolated):
    steady, victim = (start_isolated("--slots", "6") for _ in range(2))
    given = list(islice(cycle(INPUTS), JOBS))
    chains.enqueue_many([hostile_jobs.soak.item(how) for how in given])
    sizes, killed = defaultdict(list), []

    def have_completed(count):
        sizes[count].append(size(steady))
        return Job.objects.filter(status="completed").count() >= count

    for done in range(JOBS_PER_KILL, JOBS, JOBS_PER_KILL):
        until(lambda done=done: have_completed(done), 600, left)
        killed += kill(victim)
        victim = start_isolated("--slots", "6")
    until(lambda: have_completed(JOBS), 600, left)
    assert steady.is_alive
    killed += kill(victim)
    family = psutil.Process(steady.pid).children(recursive=True)
    steady.signal(15)
    assert steady.wait() == 0
    until(lambda: not alive([*killed, *family]), 20, lambda: alive([*killed, *family]))
    assert Effect.objects.values("job_id").distinct().count() == Effect.objects.count() == JOBS
    check_failures(Counter(given))
    # Medians: while child processes are replaced, there are fewer or more.
    warm = [size for count in sizes if count <= WARM_UP_JOBS for size in sizes[count]]
    descriptors, memory = map(median, zip(*warm, strict=True))
    descriptors_after, memory_after = map(median, zip(*sizes[JOBS], strict=True))
    assert descriptors_after <= descriptors + MAX_MORE_DESCRIPTORS
    assert memory_after <= memory + MAX_GROWTH


def check_failures(expected):
    """Check that misbehaving jobs failed as intended, and other jobs only because their worker was killed."""
    for how, kind, error in FailedAttempt.objects.values_list("job__input", "kind", "error"):
        if kind == "crash":
            assert how == "SIGSEGV" or "SIGSEGV" not in error
        else:
            assert (how, kind) in (("hang", "timeout"), ("memory", "error")), (how, kind, error)
    failed = set(FailedAttempt.objects.values_list("job_id", "job__input"))
    found = Counter(how for _, how in failed)
    for how in ("SIGSEGV", "hang", "memory"):
        assert found[how] == expected[how]


def left():
    running = Job.objects.exclude(status="completed")
    return Counter(Job.objects.values_list("status", flat=True)), list(running.values("input", "crashes", "last_error"))


def size(worker):
    """Return the descriptors and the resident memory of a worker process, without its children.

    Descriptors of the database are not counted, because each slot opens its connection when it is first used.
    """
    process = psutil.Process(worker.pid)
    files = [file for file in process.open_files() if str(connection.settings_dict["NAME"]) in file.path]
    return process.num_fds() - len(process.net_connections("tcp")) - len(files), process.memory_info().rss


def kill(worker):
    """Kill a worker, but not its child processes, and return these."""
    family = psutil.Process(worker.pid).children(recursive=True)
    worker.process.kill()
    worker.process.wait()
    return family


def alive(processes):
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
