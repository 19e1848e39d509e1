"""At each isolation level, rows of records are locked, columns are altered, and workers stop: no handler runs twice."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobchains.models import DeferredWrite
from django_jobchains.store.errors import is_conflict
from tests.chaos.lasting import lasting
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.isolation_levels import READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE
from tests.support.waiting import until
from tests.support.worker_processes import WorkerProcess

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


@contextmanager
def repeating(action: Callable[[], object], pause_seconds: float) -> Iterator[None]:
    """Repeat an action on another thread while the block runs. It may fail because of a lock."""
    stopping, errors = threading.Event(), []

    def run() -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '200ms'")
            while not stopping.wait(pause_seconds):
                try:
                    action()
                except OperationalError as error:
                    if not is_conflict(error):
                        raise
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)
    assert not errors


def write_slowly() -> None:
    """Change a record that is handled, in a transaction that stays open for a while."""
    with transaction.atomic():
        found = Upload.objects.filter(state="processing").select_for_update(skip_locked=True, no_key=True).first()
        if found is not None:
            Upload.objects.filter(pk=found.pk).update(size=found.size)
            threading.Event().wait(LOCKED_SECONDS)


class Lengths:
    """Changes the type of the state. A longer text needs no new version of the rows, which old snapshots do not see."""

    def __init__(self) -> None:
        self.length = LENGTH

    def grow(self) -> None:
        self.set(self.length + 1)

    def set(self, length: int) -> None:
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
        stack.enter_context(repeating(write_slowly, 0.05))
        stack.enter_context(repeating(lengths.grow, 0.5))
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


def has_completed(count: int) -> bool:
    return Upload.objects.filter(state="completed").count() >= count


def facts(processes: list[WorkerProcess]) -> object:
    states = Counter(Upload.objects.values_list("result", "state", "num_resets"))
    return states, [process.output[-2_000:] for process in processes]
