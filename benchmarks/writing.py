"""Concurrent enqueuers, in several processes and threads."""

import threading
from collections.abc import Callable
from functools import partial
from threading import Barrier

from django.db import connection, transaction

from benchmarks.project import marks
from benchmarks.project.jobs import value
from django_jobchains.notifications import encode, job_scheduled
from django_jobchains.notifications.postgres import CHANNELS


def write(kind: str, threads: int, jobs: int) -> None:
    """Commit ``jobs`` transactions in each thread, with persistent connections. All threads begin together."""
    barrier = Barrier(threads, action=marks.started)
    run = partial(_write, ENQUEUERS[kind], jobs, barrier)
    writers = [threading.Thread(target=run) for _ in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    marks.drained()


def _write(enqueue: Callable[[int], None], jobs: int, barrier: Barrier) -> None:
    enqueue(0)  # connects, and does other one-time work
    barrier.wait()
    try:
        for number in range(jobs):
            enqueue(number)
    finally:
        connection.close()


def _enqueue(number: int) -> None:
    value.enqueue({"i": number})


def _enqueue_and_notify(number: int) -> None:
    """Send NOTIFY in the user's transaction, which the package never does."""
    with transaction.atomic():
        value.enqueue({"i": number})
        with connection.cursor() as cursor:
            hint = encode(job_scheduled(value.name))
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNELS["job_scheduled"], hint])


def _enqueue_in_a_transaction(number: int) -> None:
    """The floor for NOTIFY in the transaction: the same transaction without it."""
    with transaction.atomic():
        value.enqueue({"i": number})


#: The writers by name.
ENQUEUERS: dict[str, Callable[[int], None]] = {
    "enqueue": _enqueue,
    "notify-inside": _enqueue_and_notify,
    "atomic": _enqueue_in_a_transaction,
}
