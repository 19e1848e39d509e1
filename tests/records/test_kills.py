"""Workers that are killed while they drain records: none is lost, and none is handled by two workers.

``tests/chaos/test_records.py`` does the same on a separate PostgreSQL server, which it restarts.
"""

from collections import Counter
from functools import partial

import pytest

from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

COUNT = 1_000
WORKERS = 4
#: How many records are completed between two kills.
STEP = 175


def is_completed(count):
    return Upload.objects.filter(state="completed").count() >= count


def test_killed_workers_lose_no_record_and_duplicate_no_effect(start_process):
    options = {"REAP_SECONDS": 0.5, "POLL_SECONDS": 1, "BACKOFF_INITIAL_SECONDS": 0.1, "BACKOFF_MAXIMUM_SECONDS": 0.1}

    def start():
        return start_process("--type", "records.*", "--slots", "4", jobchains=options)

    processes = [start() for _ in range(WORKERS)]
    Upload.objects.bulk_create([Upload(size=4) for _ in range(COUNT)])
    for number, killed_at in enumerate(range(STEP, COUNT, STEP)):
        until(partial(is_completed, killed_at), 120, lambda: facts(processes))
        place = number % WORKERS
        processes[place].kill()
        processes[place] = start()
    until(partial(is_completed, COUNT), 120, lambda: facts(processes))
    effects = Counter(Effect.objects.values_list("job_id", flat=True))
    assert (len(effects), set(effects.values())) == (COUNT, {1})
    assert Upload.objects.filter(num_resets__gt=0).exists(), "no kill hit a record"
    assert not Upload.objects.filter(num_failures__gt=0).exists()


def facts(processes):
    states = Counter(Upload.objects.values_list("state", flat=True))
    return states, [process.output[-1_000:] for process in processes]
