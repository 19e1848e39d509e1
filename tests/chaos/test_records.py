"""Workers drain records while they are killed and their database restarts: none is lost, none is handled by two."""

from collections import Counter
from functools import partial

import pytest

from tests.chaos.oracle import lasting
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server, start_process
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(lasting(0) + 240)]

__all__ = ("cluster", "server", "start_process")

COUNT = 5_000
WORKERS = 8
#: How many records are completed between two faults. Each fault kills a worker, and every second one restarts the
#: database too.
STEP = 200
OPTIONS = {"REAP_SECONDS": 0.5, "POLL_SECONDS": 1, "BACKOFF_INITIAL_SECONDS": 0.1, "BACKOFF_MAXIMUM_SECONDS": 0.1}


def completed():
    return Upload.objects.using(ALIAS).filter(state="completed").count()


def has_completed(count):
    return completed() >= count


def facts(processes):
    states = Counter(Upload.objects.using(ALIAS).values_list("state", flat=True))
    return states, [process.output[-1_000:] for process in processes]


def test_records_survive_killed_workers_and_restarts_of_the_database(cluster, start_process):
    def start():
        return start_process("--type", "records.*", "--slots", "4", jobchains=OPTIONS)

    Upload.objects.using(ALIAS).bulk_create([Upload(size=4) for _ in range(COUNT)])
    processes = [start() for _ in range(WORKERS)]
    for number, count in enumerate(range(STEP, COUNT, STEP)):
        until(partial(has_completed, count), 60, lambda: facts(processes))
        place = number % WORKERS
        processes[place].kill()
        processes[place] = start()
        if number % 2:
            cluster.restart("immediate" if number % 4 == 1 else "fast")
            reconnect()
    until(lambda: completed() == COUNT, 120, lambda: facts(processes))
    effects = Counter(Effect.objects.using(ALIAS).values_list("job_id", flat=True))
    assert (len(effects), set(effects.values())) == (COUNT, {1})
