"""Workers that are killed and paused, and databases that restart, while schedules fire.

The observer reads only the effects of the handlers.
"""

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
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server
from tests.support.waiting import until
from tests.support.worker_processes import started_processes

WORKERS, SCHEDULES, SECONDS = 4, int(os.environ.get("CHAOS_SCHEDULES", "10")), lasting(15)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 240)]

__all__ = ("cluster", "server")


@pytest.mark.django_db(transaction=True)
def test_no_tick_is_lost_or_doubled_while_workers_are_killed_and_paused(start_process):
    workers = Workers(start_process)
    watch(workers, [workers.kill_one, workers.pause_one], Ticks("default"))


@pytest.mark.postgresql
def test_no_tick_is_lost_or_doubled_while_the_database_restarts_too(cluster, tmp_path):
    def restart():
        cluster.restart(random.choice(["fast", "immediate"]))
        reconnect()

    with started_processes(tmp_path, cluster.environment) as start_process:
        workers = Workers(start_process)
        watch(workers, [workers.kill_one, workers.pause_one, restart], Ticks(ALIAS))


class Workers:
    """Worker processes, each of which declares all schedules."""

    def __init__(self, start_process):
        self._start_process = start_process
        self._running = [self._start() for _ in range(WORKERS)]
        for worker in self._running:
            worker.until_ready()

    def _start(self):
        return self._start_process("--slots", "4", SCHEDULES=str(SCHEDULES), LEASE_SECONDS="3")

    def kill_one(self):
        index = random.randrange(WORKERS)
        self._running[index].kill()
        self._running[index] = self._start()

    def pause_one(self):
        worker = random.choice(self._running)
        pause(worker)
        time.sleep(random.uniform(0.5, 4))
        worker.signal(signal.SIGCONT)


class Ticks:
    """The ticks of each schedule that have had an effect, in whole seconds, in order."""

    def __init__(self, using):
        self.using = using

    def read(self):
        found = defaultdict(list)
        for label in Effect.objects.using(self.using).values_list("label", flat=True):
            name, second = label.split()
            found[name].append(int(second))
        return {name: sorted(seconds) for name, seconds in found.items()}

    def last(self):
        return {name: seconds[-1] for name, seconds in self.read().items()}

    def gaps(self, before):
        """Return the ticks that have had no effect, between the first one of each schedule and its limit."""
        missing = {
            name: sorted(set(range(seconds[0], before.get(name, seconds[0]))) - set(seconds))
            for name, seconds in self.read().items()
        }
        return {name: seconds for name, seconds in missing.items() if seconds}


def watch(workers, disturbances, ticks):
    """Disturb the workers and their database for a while, then check that each tick has had one effect."""
    done = defaultdict(int)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(random.uniform(0.5, 1.5))
        disturb = random.choice(disturbances)
        disturb()
        done[disturb.__name__] += 1
    last = ticks.last()
    until(lambda: all(second > last.get(name, 0) + 5 for name, second in ticks.last().items()), 120, ticks.last)
    # The effects of the last seconds may still be missing.
    until(lambda: ticks.gaps(last) == {}, 120, lambda: ticks.gaps(last))
    found = ticks.read()
    print(f"{dict(done)}; {sum(map(len, found.values())):,} effects of {len(found):,} schedules")
    assert Schedule.objects.using(ticks.using).count() == SCHEDULES
    assert found.keys() == {f"s{number}" for number in range(SCHEDULES)}
    assert all(len(seconds) == len(set(seconds)) for seconds in found.values())
