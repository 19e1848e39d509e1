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

OPTIONS = {"REAP_SECONDS": 0.5, "POLL_SECONDS": 1, "BACKOFF_INITIAL_SECONDS": 0.1, "BACKOFF_MAXIMUM_SECONDS": 0.1}


def drain(start_process, count, workers, step, interfere=lambda number: None, using="default"):
    """Let workers handle records, and replace one of them after each ``step`` records."""
    uploads, effects = Upload.objects.using(using), Effect.objects.using(using)

    def until_completed(count):
        until(lambda: uploads.filter(state="completed").count() >= count, 120, partial(facts, processes, using))

    def start():
        return start_process("--type", "records.*", "--slots", "4", jobchains=OPTIONS)

    processes = [start() for _ in range(workers)]
    uploads.bulk_create([Upload(size=4) for _ in range(count)])
    for number, killed_at in enumerate(range(step, count, step)):
        until_completed(killed_at)
        place = number % workers
        processes[place].kill()
        processes[place] = start()
        interfere(number)
    until_completed(count)
    assert set(Counter(effects.values_list("job_id", flat=True)).values()) == {1}
    assert effects.count() == count


def facts(processes, using="default"):
    states = Counter(Upload.objects.using(using).values_list("result", "state", "num_resets"))
    return states, [process.output[-2_000:] for process in processes]


def test_killed_workers_lose_no_record_and_duplicate_no_effect(start_process):
    drain(start_process, count=1_000, workers=4, step=175)
    assert Upload.objects.filter(num_resets__gt=0).exists(), "no kill hit a record"
    assert not Upload.objects.filter(num_failures__gt=0).exists()
