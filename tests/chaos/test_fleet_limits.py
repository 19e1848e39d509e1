"""Limits hold in all worker processes together, by what handlers have written, also when workers are killed."""

import random
import re
from collections import defaultdict

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import lasting, until_all_completed
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(lasting(0) + 180),
]

PROCESSES = 4
TYPES = (jobs.for_key, jobs.for_all, jobs.of_group, jobs.also_of_group)
LIMITS = {"chaos.for_key": 2, "chaos.for_all": 3, "chaos.group": 4}


def test_no_limit_is_ever_exceeded(start_process):
    rng = random.Random(5)
    items = [
        job_type.item({"key": rng.choice("abc"), "seconds": rng.uniform(0, 0.06)})
        for job_type in TYPES
        for _ in range(150)
    ]
    rng.shuffle(items)
    chains.enqueue_many(items)
    processes = [start_process("--slots", "10") for _ in range(PROCESSES)]
    for ended in (100, 250, 400):
        until(lambda ended=ended: Job.objects.with_status("completed").count() >= ended, 60)
        processes.pop(0).kill()
        processes.append(start_process("--slots", "10"))
    until_all_completed(*processes, seconds=120)
    assert Job.objects.filter(crashes__gt=0).exists(), "no kill hit a running job"
    peaks = observed_peaks()
    assert {name: peak for name, peak in peaks.items() if peak > LIMITS[name.split("␟")[0]]} == {}
    assert peaks["chaos.for_all"] == LIMITS["chaos.for_all"], "the limit was never reached"
    assert_invariants()


def observed_peaks():
    """Return the most jobs that ran at once for each concurrency key.

    An attempt that was killed counts from its start until its job was taken back.
    """
    counted = dict(Job.objects.values_list("id", "concurrency_key"))
    moments = defaultdict(list)
    for job_id, label, time in Effect.objects.values_list("job_id", "label", "created_at"):
        kind, attempt = re.fullmatch(r"(start|end) (\d+)", label).groups()
        moments[job_id, int(attempt)].append((time, kind))
    for job_id, attempt, time in FailedAttempt.objects.values_list("job_id", "attempt", "finished_at"):
        if (job_id, attempt) in moments:
            moments[job_id, attempt] = [min(moments[job_id, attempt]), (time, "end")]
    changes = defaultdict(list)
    for (job_id, _), times in moments.items():
        (started_at, _), (ended_at, _) = sorted(times)
        changes[counted[job_id]] += [(started_at, 1), (ended_at, -1)]
    peaks = {}
    for key, found in changes.items():
        running = peaks[key] = 0
        for _, change in sorted(found):  # ends before starts of the same moment
            running += change
            peaks[key] = max(peaks[key], running)
    return peaks
