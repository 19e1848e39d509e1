"""Enqueues single jobs while workers wait, in a separate process, which its environment configures like the workers."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from os import environ
from pathlib import Path
from typing import Any

from benchmarks.bare_signals import SENDERS
from benchmarks.counting import Counter, counter
from benchmarks.database import connect
from benchmarks.seen import JITTER_SECONDS, Load, Seen
from benchmarks.times import WARM_UP, milliseconds_until_marked
from benchmarks.waking import Enqueue, bare_enqueue, enqueue
from django_jobchains.worker import Worker

TYPE = "bench.wake"
STOP_SECONDS = 10


def wake(load: dict[str, Any], signals: str, using: str, *, inside: bool) -> Seen:
    """Enqueue the jobs of a ``Load``, given by its fields.

    ``signals`` is "ours" or one of ``SENDERS``. ``inside`` runs a worker in this process.
    """
    return _wake(Load(**load), signals, using, inside=inside)


def _wake(load: Load, signals: str, using: str, *, inside: bool) -> Seen:
    with ExitStack() as stack:
        if inside:
            stack.enter_context(_working(using))
        send = stack.enter_context(_enqueueing(signals, using))
        for _ in range(WARM_UP):
            _sample(send)
            _pause(load.gap_seconds)
        return _uncounted(send, load) if using == "sqlite" else _counted(send, load)


def _uncounted(send: Enqueue, load: Load) -> Seen:
    milliseconds = []
    for _ in range(load.samples):
        milliseconds.append(_sample(send))
        _pause(load.gap_seconds)
    return Seen(milliseconds=milliseconds, statements=[], idle_statements=[], transactions=None)


def _counted(send: Enqueue, load: Load) -> Seen:
    seen = Seen(milliseconds=[], statements=[], idle_statements=[], transactions=None)
    with counter() as count:
        before = count.statements()
        for _ in range(load.idle_gaps):
            _pause(load.gap_seconds)
            before, last = count.statements(), before
            seen["idle_statements"].append(before - last)
        transactions = _transactions(count, load)
        before = count.statements()
        for _ in range(load.samples):
            seen["milliseconds"].append(_sample(send))
            _pause(load.gap_seconds)
            before, last = count.statements(), before
            seen["statements"].append(before - last)
        if transactions is not None:
            seen["transactions"] = (_transactions(count, load) or 0) - transactions
    return seen


def _transactions(count: Counter, load: Load) -> int | None:
    if load.flush_seconds is None:
        return None
    time.sleep(load.flush_seconds)
    return count.transactions()


def _sample(send: Enqueue) -> float:
    return milliseconds_until_marked(send, Path(environ["BENCH_TIMES"]))


def _pause(gap_seconds: float) -> None:
    time.sleep(gap_seconds + random.random() * JITTER_SECONDS)


@contextmanager
def _enqueueing(signals: str, using: str) -> Iterator[Enqueue]:
    if signals == "ours":
        yield partial(enqueue, TYPE, using)
        return
    with connect() as bare, SENDERS[signals](bare) as send:
        yield partial(bare_enqueue, bare, send, TYPE)


@contextmanager
def _working(using: str) -> Iterator[None]:
    worker = Worker(slots=1, types=[TYPE], using=using)
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    try:
        yield
    finally:
        worker.request_stop()
        thread.join(STOP_SECONDS)
