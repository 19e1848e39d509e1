"""Many jobs run, and some of them crash, hang or exceed their memory limit, while workers are killed.

``JOBCHAINS_SOAK_JOBS=20000`` runs that many jobs, and ``pytest -s`` shows the measured values.
"""

import os
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import cycle, islice
from statistics import median

import psutil
import pytest
from django.db import connection
from django.db.models import Count

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.isolation.app import soak_jobs
from tests.shop.models import Effect
from tests.support.waiting import until

JOBS = int(os.environ.get("JOBCHAINS_SOAK_JOBS", "300"))
#: A worker is killed each time this many jobs have completed.
JOBS_PER_KILL = max(JOBS // 8, 100)
#: After this many jobs, the worker that is never killed should not grow any further.
WARM_UP_JOBS = max(JOBS // 3, JOBS_PER_KILL)
#: Of a hundred jobs, two crash, one hangs and one exceeds its memory limit.
INPUTS = ("crash", *["good"] * 32, "hang", *["good"] * 32, "memory", *["good"] * 16, "crash", *["good"] * 16)
#: The default number of jobs shows what leaks with each job. What leaks with each crash takes more jobs to notice.
MAX_GROWTH = 20 * 1024**2
MAX_MORE_DESCRIPTORS = 3

#: The default number of jobs takes half a minute; 20,000 jobs took three and a half minutes on two cores.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + JOBS)]


def test_every_job_completes_once_and_nothing_is_left(start_isolated):
    assert len(INPUTS) == 100
    steady, victim = (start_isolated("--slots", "6") for _ in range(2))
    chains.enqueue_many([soak_jobs.soak.item(how) for how in islice(cycle(INPUTS), JOBS)])
    sizes = defaultdict(list)

    def have_completed(count):
        sizes[count].append(_size(steady))
        return _completed() >= count

    killed = []
    for done in _milestones():
        until(lambda done=done: have_completed(done), 600, _state)
        killed += _kill(victim)
        victim = start_isolated("--slots", "6")
    until(lambda: have_completed(JOBS), 600, _state)
    assert steady.is_alive
    killed += _kill(victim)
    family = psutil.Process(steady.pid).children(recursive=True)
    steady.signal(15)
    assert steady.wait() == 0
    until(lambda: not _alive([*killed, *family]), 20, lambda: _alive([*killed, *family]))
    descriptors, memory = _medians([size for count in sizes if count <= WARM_UP_JOBS for size in sizes[count]])
    descriptors_after, memory_after = _medians(sizes[JOBS])
    print(f"\n{JOBS:,} jobs, {len(list(_milestones())) + 1} workers killed with {len(killed)} processes.")
    print(f"Descriptors {descriptors:.0f} → {descriptors_after:.0f}")
    print(f"Memory {memory / 2**20:.1f} → {memory_after / 2**20:.1f} MB")
    print(dict(Counter(FailedAttempt.objects.values_list("kind", flat=True))))
    assert not Effect.objects.values("job_id").annotate(count=Count("id")).exclude(count=1).exists()
    assert Effect.objects.count() == JOBS
    _check_failures()
    assert descriptors_after <= descriptors + MAX_MORE_DESCRIPTORS
    assert memory_after <= memory + MAX_GROWTH


def _medians(sizes):
    """Return the medians of descriptors and memory: while child processes are replaced, there are fewer or more."""
    descriptors, memory = zip(*sizes, strict=True)
    return median(descriptors), median(memory)


def _milestones():
    yield from range(JOBS_PER_KILL, JOBS, JOBS_PER_KILL)


def _check_failures():
    """Check that misbehaving jobs failed as intended, and other jobs only because their worker was killed."""
    failures = FailedAttempt.objects.values_list("job__input", "kind", "error")
    for how, kind, error in failures:
        if kind == "crash":
            assert how == "crash" or "SIGSEGV" not in error
        else:
            assert (how, kind) in (("hang", "timeout"), ("memory", "error")), (how, kind, error)
    expected = Counter(islice(cycle(INPUTS), JOBS))
    failed = set(FailedAttempt.objects.values_list("job_id", "job__input"))
    found = Counter(how for _, how in failed)
    for how in ("crash", "hang", "memory"):
        assert found[how] == expected[how]


def _completed():
    return Job.objects.filter(status="completed").count()


def _state():
    return Counter(Job.objects.values_list("status", flat=True)), list(
        Job.objects.exclude(status="completed").values("input", "status", "attempt", "crashes", "last_error")[:5]
    )


def _size(worker):
    """Return the descriptors and the resident memory of a worker process, without its children.

    Descriptors of the database are not counted, because each slot opens its connection when it is first used.
    """
    process = psutil.Process(worker.pid)
    files = [file for file in process.open_files() if str(connection.settings_dict["NAME"]) in file.path]
    return process.num_fds() - len(process.net_connections("tcp")) - len(files), process.memory_info().rss


def _kill(worker):
    """Kill a worker, but not its child processes, and return these."""
    family = psutil.Process(worker.pid).children(recursive=True)
    worker.process.kill()
    worker.process.wait()
    return family


def _alive(processes):
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
