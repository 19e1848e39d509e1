"""Limits hold in all worker processes together, by what handlers have written, also when workers are killed or paused.

Only the handlers' timestamps are read, when attempts of killed workers were taken back, and when limits were changed.
"""

import random
import signal
import time
from collections import defaultdict
from datetime import datetime
from itertools import cycle

import pytest

from django_jobchains import chains, limits
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import lasting, until_all_completed
from tests.records.models import Export
from tests.shop.models import Effect
from tests.soak.oracle import Findings, Numbers, Run, examine_runs
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs

SECONDS = lasting(60)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(SECONDS + 240),
]

PROCESSES = 8
TYPES = (jobs.for_key, jobs.for_all, jobs.of_group, jobs.also_of_group, jobs.of_queue)
QUEUE = "narrow"
#: The limits in the beginning: those of the code, and that of the queue, which is set at run time. Two are changed.
LIMITS = {"chaos.for_key": 2, "chaos.for_all": 3, "chaos.group": 4, "chaos.records": 2, QUEUE: 3}
CHANGES = ((QUEUE, 2), ("chaos.for_all", 1), (QUEUE, 5), ("chaos.for_all", 3))
#: The time in which a change takes effect, and a margin for a busy machine.
IN_EFFECT_SECONDS = 2 + 3
#: The work that waits at least, of each type, and how long a worker is paused: longer than a lease.
WAITING = 60
PAUSE_SECONDS = 3.0


def test_no_limit_is_ever_exceeded(start_process, registry):
    registry.add(jobs.processors)
    rng = random.Random(5)
    limits.set(queue=QUEUE, concurrency=LIMITS[QUEUE])
    numbers, changes = cycle(CHANGES), []
    start = lambda: start_process("--slots", "10", LIMITED_RECORDS="1")  # noqa: E731
    processes = [start() for _ in range(PROCESSES)]
    for process in processes:
        process.until_ready()
    faults = 0
    until_time = time.monotonic() + SECONDS
    while time.monotonic() < until_time or not was_work_hit():
        enqueue(rng)
        time.sleep(1)
        process = processes.pop(0)
        if (faults := faults + 1) % 2:
            process.kill()
            processes.append(start())
            # No worker is paused now, which would keep it from reading the change.
            changes += set_limit(*next(numbers))
            for _ in range(IN_EFFECT_SECONDS):
                enqueue(rng)
                time.sleep(1)
        else:
            process.freeze()
            enqueue(rng)
            time.sleep(PAUSE_SECONDS)
            process.signal(signal.SIGCONT)
            processes.append(process)
    until_all_completed(*processes, seconds=120)
    until(lambda: not Export.objects.exclude(state="completed").exists(), 60)
    findings = Findings()
    examine_runs(observed_runs(), Numbers(changes, LIMITS, IN_EFFECT_SECONDS), findings)
    print(f"{Job.objects.count()} jobs, {Export.objects.count()} records, {faults} faults, {findings.peaks}")
    assert findings.violations == {}
    for name in ("chaos.for_all", "chaos.group", QUEUE):
        assert findings.peaks[name] >= LIMITS[name], "the limit was never reached"
    assert_invariants()


def was_work_hit():
    """Return whether running jobs and records in process were taken from workers that were killed or paused."""
    return Job.objects.filter(crashes__gt=0).exists() and Export.objects.filter(num_resets__gt=0).exists()


def enqueue(rng):
    """Let work of each type wait."""
    waiting = Job.objects.incomplete()
    for job_type in TYPES:
        count = WAITING - waiting.of_type(job_type.name).count()
        inputs = [{"key": rng.choice("abc"), "seconds": rng.uniform(0, 0.06)} for _ in range(count)]
        chains.enqueue_many([job_type.item(each) for each in inputs])
    count = WAITING - Export.objects.filter(state="queued").count()
    Export.objects.bulk_create([Export(name=rng.choice("abc")) for _ in range(count)])


def set_limit(name, number):
    """Set a limit, and return what a journal says about it."""
    asked_at = time.time()
    if name == QUEUE:
        limits.set(queue=QUEUE, concurrency=number)
    else:
        limits.set(name, concurrency=number)
    times = {"limit_asked": asked_at, "limit_set": time.time()}
    return [{"what": what, "name": name, "number": number, "at": at} for what, at in times.items()]


def observed_runs():
    """Return the attempts by what they are counted by.

    An attempt that was taken back counts from its start until then. When records were reset is not known, so only the
    last attempt at each of them counts.
    """
    counted = {pk: key or QUEUE for pk, key in Job.objects.values_list("id", "concurrency_key")}
    last = dict(Export.objects.values_list("pk", "lease_number"))
    counted |= {pk: f"chaos.records␟{name}" for pk, name in Export.objects.values_list("pk", "name")}
    moments, claims = defaultdict(list), {}
    for job_id, label, written_at in Effect.objects.values_list("job_id", "label", "created_at"):
        kind, attempt, *claimed_at = label.split()
        moments[job_id, int(attempt)].append((written_at, kind))
        for text in claimed_at:
            claims[job_id, int(attempt)] = datetime.fromisoformat(text).timestamp()
    for job_id, attempt, taken_at in FailedAttempt.objects.values_list("job_id", "attempt", "finished_at"):
        times = moments.get((job_id, attempt))
        if times is not None:  # A handler that a paused worker started too late has lost its job.
            moments[job_id, attempt] = [min(times), (taken_at, "end")] if min(times)[0] < taken_at else []
    runs = defaultdict(list)
    for (job_id, attempt), times in moments.items():
        if len(times) == 2 and last.get(job_id, attempt) == attempt:
            started, ended = sorted(at.timestamp() for at, _ in times)
            name = counted[job_id].replace("␟", " ")
            runs[name].append(Run(started, ended, claims[job_id, attempt], f"{job_id}:{attempt}"))
    return runs
