"""At each isolation level, rows of records are locked, columns are altered, and workers stop: no handler runs twice."""

import signal
from collections import Counter
from contextlib import ExitStack
from functools import partial

import pytest
from django.db import connection, transaction

from django_jobchains.models import DeferredWrite
from tests.chaos.open_transactions import repeating
from tests.chaos.oracle import lasting
from tests.records.models import Upload
from tests.records.test_kills import facts
from tests.shop.models import Effect
from tests.support.connections import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(lasting(0) + 240),
]

COUNT = 400
#: How many records are completed before each stop of a worker.
STOPS = (60, 150, 240, 330)
#: What the handlers do: some count the effects of all others, which conflicts at SERIALIZABLE.
WAYS = ("completes", "counts", "returns")
LOCKED_SECONDS = 0.3
LENGTH = 20
OPTIONS = {"MAX_ATTEMPTS": 1_000}


def write_slowly(wait):
    """Change a record that is handled, in a transaction that stays open for a while."""
    with transaction.atomic():
        found = Upload.objects.filter(state="processing").select_for_update(skip_locked=True, no_key=True).first()
        if found is not None:
            Upload.objects.filter(pk=found.pk).update(size=found.size)
            wait(LOCKED_SECONDS)


class Lengths:
    """Changes the type of the state. A longer text needs no new version of the rows, which old snapshots do not see."""

    def __init__(self):
        self.length = LENGTH

    def grow(self, wait):
        self.set(self.length + 1)

    def set(self, length):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE records_upload ALTER COLUMN state TYPE varchar({length})")
        self.length = length


@pytest.mark.parametrize("level", [READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE])
def test_no_handler_that_has_returned_is_called_again(start_process, level):
    environment = {"PGOPTIONS": "-c default_transaction_isolation=" + level.replace(" ", "\\ "), "LEASE_SECONDS": "60"}
    arguments = ("--type", "records.*", "--slots", "4", "--shutdown-timeout", "10")
    start = partial(start_process, *arguments, jobchains=OPTIONS, **environment)
    Upload.objects.bulk_create([Upload(size=20, result=WAYS[number % 3]) for number in range(COUNT)])
    processes = [start(), start()]
    lengths = Lengths()
    with ExitStack() as stack:
        stack.callback(lengths.set, LENGTH)
        stack.enter_context(repeating(write_slowly, 0.05, "200ms"))
        stack.enter_context(repeating(lengths.grow, 0.5, "200ms"))
        for number, count in enumerate(STOPS):
            until(partial(has_completed, count), 60, partial(facts, processes))
            process = processes[number % 2]
            process.signal(signal.SIGTERM)
            assert process.wait(60) == 0, process.output
            processes[number % 2] = start()
        until(partial(has_completed, COUNT), 60, partial(facts, processes))
        until(lambda: not DeferredWrite.objects.filter(kind="record").exists(), 30)
        for process in processes:
            process.kill()
    assert lengths.length == LENGTH
    effects = Counter(Effect.objects.values_list("job_id", flat=True))
    assert (len(effects), set(effects.values())) == (COUNT, {1})
    assert not Upload.objects.exclude(num_resets=0).exists()
    if level != SERIALIZABLE:  # There, the handlers' own statements conflict, too.
        assert not Upload.objects.exclude(num_failures=0).exists()


def has_completed(count):
    return Upload.objects.filter(state="completed").count() >= count
