"""Rates hold in all worker processes together, also when workers are killed, stopped and paused.

Only what handlers have written is read: the times when their attempts were claimed, which are the starts of a rate, and
when they were called.
"""

import random
import signal
from collections import defaultdict
from datetime import datetime
from time import sleep

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
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

PROCESSES = 8
TYPES = (jobs.rated_by_key, jobs.rated, jobs.also_rated)


def test_no_rate_is_ever_exceeded(start_process):
    """Some workers are killed, some stop and hand back what waits for a slot, and some are paused."""
    rng = random.Random(6)
    items = [
        job_type.item({"key": rng.choice("abc"), "seconds": rng.uniform(0, 0.1)})
        for job_type in TYPES
        for _ in range(120)
    ]
    rng.shuffle(items)
    chains.enqueue_many(items)
    processes = [start_process("--slots", "2") for _ in range(PROCESSES)]
    for number, ended in enumerate(range(30, 300, 30)):
        until(lambda ended=ended: Job.objects.with_status("completed").count() >= ended, 60)
        process = processes.pop(0)
        if number % 3 == 0:
            process.kill()
            process = start_process("--slots", "2")
        elif number % 3 == 1:
            process.signal(signal.SIGTERM)
            process = start_process("--slots", "2")
        else:
            process.signal(signal.SIGSTOP)
            sleep(0.3)
            process.signal(signal.SIGCONT)
        processes.append(process)
    until_all_completed(*processes, seconds=120)
    starts = observed_starts()
    assert starts.keys() == {"chaos.rated", *(f"chaos.rated_by_key␟{key}" for key in "abc")}
    for key, attempts in starts.items():
        limit, burst = (25, 1) if key == "chaos.rated" else (10, 3)
        most, claimed = limit + burst - 1, sorted(claimed_at for claimed_at, _ in attempts)
        assert_windows(claimed, most, 1)
        # A handler is called later than its job is claimed, so that a window may begin with late ones.
        latest = max((called_at - claimed_at).total_seconds() for claimed_at, called_at in attempts)
        assert_windows(sorted(called_at for _, called_at in attempts), most, 1 - latest)
    assert_invariants()


def assert_windows(times, most, seconds):
    """Assert that no window of this length has more than so many starts."""
    for first, last in zip(times, times[most:], strict=False):
        assert (last - first).total_seconds() >= seconds, (first, last)


def observed_starts():
    """Return when the attempts of each rate key were claimed, and when their handlers were called."""
    keys = dict(Job.objects.values_list("id", "rate_key"))
    starts = defaultdict(list)
    for job_id, claimed_at, called_at in Effect.objects.values_list("job_id", "label", "created_at"):
        starts[keys[job_id]].append((datetime.fromisoformat(claimed_at), called_at))
    return starts
