"""Workers that are killed and paused while they fire schedules. The observer reads only the effects of the handlers."""

import os
import random
import signal
import time
from collections import defaultdict

import pytest

from django_jobchains.models import Schedule
from tests.chaos.oracle import lasting
from tests.chaos.test_processes import pause
from tests.shop.models import Effect
from tests.support.waiting import until

WORKERS, SCHEDULES, SECONDS = 4, int(os.environ.get("CHAOS_SCHEDULES", "10")), lasting(15)
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(SECONDS + 240)]


def ticks():
    """Return the ticks of each schedule that have had an effect, in whole seconds, in order."""
    found = defaultdict(list)
    for label in Effect.objects.values_list("label", flat=True):
        name, second = label.split()
        found[name].append(int(second))
    return {name: sorted(seconds) for name, seconds in found.items()}


def test_no_tick_is_lost_or_doubled_while_workers_are_killed_and_paused(start_process):
    def start():
        return start_process("--slots", "4", SCHEDULES=str(SCHEDULES), LEASE_SECONDS="3")

    workers = [start() for _ in range(WORKERS)]
    for worker in workers:
        worker.until_ready()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(random.uniform(0.5, 1.5))
        index = random.randrange(WORKERS)
        if random.random() < 0.5:
            workers[index].kill()
            workers[index] = start()
        else:
            pause(workers[index])
            time.sleep(random.uniform(0.5, 4))
            workers[index].signal(signal.SIGCONT)
    last = {name: seconds[-1] for name, seconds in ticks().items()}
    until(lambda: all(seconds[-1] > last.get(name, 0) + 5 for name, seconds in ticks().items()), 120, ticks)
    assert Schedule.objects.count() == SCHEDULES
    # The effects of the last seconds may still be missing.
    until(lambda: gaps(before=last) == {}, 120, lambda: gaps(before=last))
    assert ticks().keys() == {f"s{number}" for number in range(SCHEDULES)}
    assert all(len(seconds) == len(set(seconds)) for seconds in ticks().values())


def gaps(before):
    """Return the ticks that have had no effect, between the first one of each schedule and its limit."""
    missing = {
        name: sorted(set(range(seconds[0], before.get(name, seconds[0]))) - set(seconds))
        for name, seconds in ticks().items()
    }
    return {name: seconds for name, seconds in missing.items() if seconds}
