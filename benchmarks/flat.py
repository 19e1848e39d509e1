"""The cost of a worker's statements with a backlog and on empty tables: database and driver, in one process.

The calls alternate between the two, so that a slow machine slows down both. The figures are medians.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from benchmarks import backlogs
from benchmarks.backlogs import MEASURED, SERVED, USING, Backlog
from benchmarks.cells import Cell, Figures, Row, Target
from benchmarks.database import add_records, finish, new_jobs, settle
from django_jobchains.declare.policies import Backoff
from django_jobchains.declare.registry import get_registry
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store, get_store
from django_jobchains.store.record_tables import Dequeued, RecordEnd, RecordTable
from django_jobchains.store.records import DequeueRequest
from django_jobchains.store.rows import ClaimedJob, Effects, HeldLease

Claimed = ClaimedJob | Dequeued | HeldLease

#: The sizes of batches, with the number of calls of each.
BATCHES = {1: 150, 10: 60, 50: 30}
#: The number of calls of each of the other statements.
CALLS = 60
LEASES = dict.fromkeys(SERVED, 3_600.0)
HELD = 10
#: The calls that must cost the same. Other calls may cost more: an idle claim makes up to two probes for each served
#: type when other types lie between them, and a sweep reads up to a thousand blocked jobs.
FLAT = tuple(f"{what} {size}" for size in BATCHES for what in ("claim", "finish"))

#: Backlogs that take minutes to fill, or that show the same as another one.
EXTRA = ("finished", "queues")
#: The backlogs in the page's table of limits.
ROWS = ("types", "tenants")


def cells(*, is_quick: bool) -> Iterator[Cell]:
    for whole in _backlogs():
        backlog = replace(whole, count=whole.count // 100) if is_quick else whole
        both = Both(backlog)
        yield Cell(
            f"flat-{backlog.name}",
            f"cost with {backlog.count:,} {backlog.title}, in µs per job or call",
            {"ours": both.beside_the_backlog, "empty tables": both.alone},
            tuple(Target(metric, at_most=_bound(backlog, metric), of_floor="empty tables") for metric in FLAT),
            prepare=partial(backlogs.make, backlog),
            is_extra=backlog.name in EXTRA,
            row=_row(backlog) if backlog.name in ROWS else None,
        )


def _row(backlog: Backlog) -> Row:
    largest = max(BATCHES)
    return Row(f"claim of {largest} with {backlog.count:,} {backlog.title}, µs per job", f"claim {largest}")


def _bound(backlog: Backlog, metric: str) -> float:
    """Return how much more a call may cost than on empty tables. A large batch shows the least noise."""
    if backlog.name == "tenants" and metric.startswith("claim"):
        return 1.5
    return 1.1 if metric.endswith(str(max(BATCHES))) else 1.2


def _backlogs() -> Iterator[Backlog]:
    million, served = 1_000_000, ("default",)
    yield Backlog("nothing", "other jobs on both sides, which shows the noise", 0, backlogs.nothing)
    yield Backlog("finished", "finished jobs", 10 * million, backlogs.finished)
    yield Backlog("types", "due jobs of 50 other types", million, backlogs.of_other_types)
    yield Backlog("many-types", "due jobs of 1,000 other types", million, backlogs.of_many_other_types)
    yield Backlog("queues", "due jobs in 1,000 other queues", million, backlogs.in_other_queues, served)
    title = "due jobs of other types in 1,000 served queues"
    yield Backlog("tenants", title, million // 10, backlogs.of_other_types_in_other_queues)
    yield Backlog("tomorrow", "jobs of a higher priority for tomorrow", million, backlogs.of_tomorrow)
    yield Backlog("blocked", "blocked jobs", million, backlogs.blocked)
    title = "completed records and a tenth as many with a later process_after"
    yield Backlog("records", title, million, backlogs.of_records)
    yield Backlog("running", "running jobs of other workers", 100_000, backlogs.running)


class Both:
    """Measures both tables together, and reports one after the other."""

    def __init__(self, backlog: Backlog) -> None:
        self._make = RecordSide if backlog.fill is backlogs.of_records else Side
        self._queues = backlog.queues
        self._alone: Figures = {}

    def beside_the_backlog(self) -> Figures:
        sides = [self._make(get_store(using), self._queues) for using in (USING, "default")]
        for size, times in BATCHES.items():
            for _ in range(times):
                for side in sides:
                    side.claim_and_finish(size)
        for _ in range(CALLS):
            for side in sides:
                side.ask()
        ours, self._alone = (side.figures() for side in sides)
        return ours

    def alone(self) -> Figures:
        return self._alone


class Side:
    def __init__(self, store: Store, queues: Sequence[str] | None) -> None:
        self._store = store
        self._queues = queues
        self._times: dict[str, list[float]] = {}
        self._create(HELD + sum(size * times for size, times in BATCHES.items()))
        self._held = [HeldLease(job.id, job.lease_number, 3_600) for job in self._claim(HELD)]

    def figures(self) -> Figures:
        """Finish the jobs whose leases were held, and return the medians in µs."""
        self._finish(self._held)
        return {name: median(times) * 1e6 for name, times in self._times.items()}

    def claim_and_finish(self, size: int) -> None:
        jobs = self._timed(f"claim {size}", lambda: self._claim(size), size)
        assert len(jobs) == size, "Another process claims jobs in this database, too."
        self._timed(f"finish {size}", lambda: self._finish(jobs), size)

    def ask(self) -> None:
        """Time the statements of an idle worker, and those that run from time to time."""
        store, ids = self._store, [lease.id for lease in self._held]
        self._timed("idle claim", lambda: self._claim(10))
        self._timed("next_due", lambda: store.jobs.next_due(LEASES, self._queues))
        self._timed(f"renew {HELD}", lambda: store.leases.renew(self._held))
        self._timed("reap", lambda: store.leases.reap(100, Backoff(), 10, ids))
        self._timed("sweep", lambda: store.blockers.sweep(1_000, None, Effects()))

    def _create(self, count: int) -> None:
        self._store.jobs.create(new_jobs(MEASURED, count))

    def _claim(self, limit: int) -> Sequence[Claimed]:
        return self._store.jobs.claim("bench", limit, LEASES, self._queues)

    def _finish(self, jobs: Sequence[Claimed]) -> None:
        finish(jobs, self._store.using)

    def _timed(self, name: str, call: Callable[[], Any], of: int = 1) -> Any:
        begun = time.perf_counter()
        result = call()
        self._times.setdefault(name, []).append((time.perf_counter() - begun) / of)
        return result


class RecordSide(Side):
    """The same for records, which are claimed by dequeueing them."""

    def ask(self) -> None:
        keys = [(lease.id, lease.lease_number) for lease in self._held]
        self._timed(f"beat {HELD}", lambda: self._store.records.beat(self._table, keys))

    @property
    def _kind(self) -> RecordType:
        return get_registry().record_type("bench.record")

    @property
    def _table(self) -> RecordTable:
        return self._kind.table(self._store.using)

    def _create(self, count: int) -> None:
        add_records(count, using=self._store.using)
        settle(self._store.using)  # Without statistics, the empty table would have worse plans.

    def _claim(self, limit: int) -> Sequence[Claimed]:
        request = DequeueRequest(self._kind.select(self._store.using), limit, "bench", self._kind.queue)
        return self._store.records.dequeue(self._table, request)

    def _finish(self, jobs: Sequence[Claimed]) -> None:
        ends = [RecordEnd(record.id, record.lease_number, "completed") for record in jobs]
        self._store.records.end(self._table, ends)
