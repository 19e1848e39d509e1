"""Limits hold in all worker processes together, by what handlers have written, also when workers are killed or paused.

Only the handlers' timestamps are read, and when the attempts of killed workers were taken back.
"""

import random
import re
import signal
import time
from collections import defaultdict

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import lasting, until_all_completed
from tests.records.models import Export
from tests.shop.models import Effect
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
TYPES = (jobs.for_key, jobs.for_all, jobs.of_group, jobs.also_of_group)
LIMITS = {"chaos.for_key": 2, "chaos.for_all": 3, "chaos.group": 4, "chaos.records": 2}
#: The work that waits at least, of each type, and how long a worker is paused: longer than a lease.
WAITING = 60
PAUSE_SECONDS = 3.0


def test_no_limit_is_ever_exceeded(start_process):
    rng = random.Random(5)
    start = lambda: start_process("--slots", "10", LIMITED_RECORDS="1")  # noqa: E731
    processes = [start().until_ready() for _ in range(PROCESSES)]
    faults = 0
    until_time = time.monotonic() + SECONDS
    while time.monotonic() < until_time:
        enqueue(rng)
        time.sleep(1)
        process = processes.pop(0)
        if (faults := faults + 1) % 2:
            process.kill()
            processes.append(start())
        else:
            process.freeze()
            enqueue(rng)
            time.sleep(PAUSE_SECONDS)
            process.signal(signal.SIGCONT)
            processes.append(process)
    until_all_completed(*processes, seconds=120)
    until(lambda: not Export.objects.exclude(state="completed").exists(), 60)
    assert Job.objects.filter(crashes__gt=0).exists(), "no fault hit a running job"
    assert Export.objects.filter(num_resets__gt=0).exists(), "no fault hit a record in process"
    peaks = observed_peaks()
    print(f"{Job.objects.count()} jobs, {Export.objects.count()} records, {faults} faults, {peaks}")
    assert {name: peak for name, peak in peaks.items() if peak > LIMITS[name.split("␟")[0]]} == {}
    for name in ("chaos.for_all", "chaos.group"):
        assert peaks[name] == LIMITS[name], "the limit was never reached"
    assert_invariants()


def enqueue(rng):
    """Let work of each type wait."""
    waiting = Job.objects.incomplete()
    for job_type in TYPES:
        count = WAITING - waiting.of_type(job_type.name).count()
        inputs = [{"key": rng.choice("abc"), "seconds": rng.uniform(0, 0.06)} for _ in range(count)]
        chains.enqueue_many([job_type.item(each) for each in inputs])
    count = WAITING - Export.objects.filter(state="queued").count()
    Export.objects.bulk_create([Export(name=rng.choice("abc")) for _ in range(count)])


def observed_peaks():
    """Return the most that ran at once for each concurrency key.

    An attempt that was taken back counts from its start until then. When records were reset is not known, so only the
    last attempt at each of them counts.
    """
    counted = dict(Job.objects.values_list("id", "concurrency_key"))
    last = dict(Export.objects.values_list("pk", "lease_number"))
    counted |= {pk: f"chaos.records␟{name}" for pk, name in Export.objects.values_list("pk", "name")}
    moments = defaultdict(list)
    for job_id, label, written_at in Effect.objects.values_list("job_id", "label", "created_at"):
        kind, attempt = re.fullmatch(r"(start|end) (\d+)", label).groups()
        moments[job_id, int(attempt)].append((written_at, kind))
    for job_id, attempt, taken_at in FailedAttempt.objects.values_list("job_id", "attempt", "finished_at"):
        times = moments.get((job_id, attempt))
        if times is not None:  # A handler that a paused worker started too late has lost its job.
            moments[job_id, attempt] = [min(times), (taken_at, "end")] if min(times)[0] < taken_at else []
    changes = defaultdict(list)
    for (job_id, attempt), times in moments.items():
        if len(times) == 2 and last.get(job_id, attempt) == attempt:
            (started_at, _), (ended_at, _) = sorted(times)
            changes[counted[job_id]] += [(started_at, 1), (ended_at, -1)]
    peaks = {}
    for key, found in changes.items():
        running = peaks[key] = 0
        for _, change in sorted(found):  # ends before starts of the same moment
            running += change
            peaks[key] = max(peaks[key], running)
    return peaks
