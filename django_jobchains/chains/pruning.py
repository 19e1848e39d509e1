"""Retention: how long chains are kept after they have ended, and deleting them in batches, while workers run."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from django_jobchains.db.async_twins import has_async_twin
from django_jobchains.db.ids import first_id_at, milliseconds_of
from django_jobchains.declare.job_types import JobType
from django_jobchains.declare.policies import Retention, resolve_retention
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.payloads.types import name_of
from django_jobchains.statuses import FINAL, Status
from django_jobchains.store import Store, get_store
from django_jobchains.store.retention import EndedChains, EndPosition
from django_jobchains.values import Count, Duration

#: No chain is older, and every database can subtract this from today's date.
MAX_AGE = timedelta(days=365 * 1000)
#: Chains are first examined when this additional share of their retention has passed. Most of them have ended by then.
DELAY_SHARE = 0.1
MAX_DELAY = timedelta(hours=1)
MAX_BATCH_SIZE = 10_000
#: The limit of chains that were kept for a job, and are tried again at the end, when that job may have been deleted.
MAX_KEPT = 100_000
#: How far the clock of a host that makes ids may be ahead of the database's. Chains from hosts that are further ahead
#: are deleted later. The ends of chains are times of the database's clock.
MAX_CLOCK_SKEW = timedelta(days=1)

FIRST_ID, LAST_ID = UUID(int=0), UUID(int=2**128 - 1)

#: Called after each batch with the number of deleted chains, and the share of the work that is done (0 to 1).
OnBatch = Callable[[int, float], object]


@has_async_twin("chains")
def prune(
    older_than: timedelta | str | None = None,
    statuses: Iterable[str] | None = None,
    types: "Iterable[str | JobType[Any, Any]] | None" = None,
    *,
    batch: int = 1_000,
    dry_run: bool = False,
    using: str | None = None,
    on_batch: OnBatch | None = None,
) -> int:
    """Delete chains whose retention has expired, and return their number.

    Without ``older_than``, the retention of each declared type decides, as in a worker. With it, all chains that ended
    more than this time ago by the database's clock are deleted, even if their retention or deduplication key would keep
    them. Failed chains are kept unless ``statuses`` includes them. ``statuses`` and ``types`` restrict which chains are
    deleted.

    A chain is kept while a job of another chain has it as a blocker and is not completed, and while another
    transaction has it locked. Each batch of at most ``batch`` chains is a short transaction, or part of the caller's.
    ``dry_run`` counts without deleting. ``on_batch`` is called with the number of deleted chains and the progress (0 to
    1).
    """
    names = None
    if types is not None:
        names = tuple(dict.fromkeys(map(name_of, [types] if isinstance(types, str | JobType) else types)))
    final = None if statuses is None else _final(statuses)
    size = Count(1, MAX_BATCH_SIZE).check("batch", batch)
    if not isinstance(older_than, timedelta | str | None):  # A number could be seconds or days.
        raise TypeError(f"older_than is a timedelta or a text such as '30d', not {type(older_than).__name__}.")
    seconds = Duration(least=0, most=math.inf).check_or("older_than", older_than, None)
    store = get_store(using)
    now = store.stats.time_ago(0)
    if seconds is None:
        get_registry().add_tasks(store.task_names.read)
        all_ended = _beyond_retention(now, final, names)
    else:
        final = (Status.COMPLETED, Status.CANCELLED) if final is None else final
        all_ended = [EndedChains(final, store.stats.time_ago(min(seconds, MAX_AGE.total_seconds())), names)]
    column = "status" if names is None else "chain_type_name"
    walks = [
        Walk(ended, column, value, first, last)
        for ended in all_ended
        for value in (ended.statuses if names is None else ended.types or ())
        for first, last in full_ranges(ended, now)
    ]
    return _Prune(store, size, dry_run).run(walks, on_batch)


aprune = sync_to_async(prune)


class Walk:
    """A walk through ended chains, along the index of a status or a chain type, over a range of ids."""

    def __init__(self, ended: EndedChains, column: str, value: str, first: UUID, last: UUID) -> None:
        self.ended = ended
        self._column = column
        self._value = value
        self._last = last
        self._position = EndPosition(first)
        self._first_found: UUID | None = None
        self.is_over = False

    @property
    def progress(self) -> float:
        """The share of the walk that is done (0 to 1), if chains were started evenly."""
        if self.is_over or not self._first_found:
            return 1
        first, now, last = map(milliseconds_of, (self._first_found, self._position.chain_id, self._last))
        return (now - first) / max(1, last - first)

    def find(self, store: Store, limit: int) -> Sequence[UUID]:
        """Read the next ``limit`` entries of the index. Return the last jobs of the chains that may be deleted."""
        found = store.retention.find_ended(self._column, self._value, self._position, self._last, limit, self.ended)
        self._first_found = self._first_found or found.first
        self._position = found.next or self._position
        self.is_over = found.next is None
        return list(found.job_ids)


def full_ranges(ended: EndedChains, now: datetime) -> list[tuple[UUID, UUID]]:
    """Return the ranges of ids in which chains that have ended may be.

    Ids are ordered by time, and a chain is created before it ends, so newer ids are skipped. Explicit ids need not
    follow that order. Most of them are random, and lie in the far future, where there are no other ids.
    """
    return [(FIRST_ID, first_id_at(ended.before + MAX_CLOCK_SKEW)), (first_id_at(now + MAX_CLOCK_SKEW), LAST_ID)]


class _Prune:
    def __init__(self, store: Store, batch_size: int, is_dry_run: bool) -> None:
        self._store = store
        self._batch_size = batch_size
        self._is_dry_run = is_dry_run
        self._deleted = 0
        self._kept: dict[EndedChains, set[UUID]] = {}

    def run(self, walks: Sequence[Walk], on_batch: OnBatch | None) -> int:
        for number, walk in enumerate(walks):
            while not walk.is_over:
                if job_ids := walk.find(self._store, self._batch_size):
                    self._prune(job_ids, walk.ended)
                if on_batch:
                    on_batch(self._deleted, (number + walk.progress) / len(walks))
        while self._kept and not self._is_dry_run and self._prune_kept():
            pass
        return self._deleted

    def _prune(self, job_ids: Iterable[UUID], ended: EndedChains) -> int:
        pruned = self._store.retention.prune(list(job_ids), ended, is_dry_run=self._is_dry_run)
        self._deleted += len(pruned.deleted)
        if pruned.kept and sum(map(len, self._kept.values())) < MAX_KEPT:
            self._kept.setdefault(ended, set()).update(pruned.kept)
        return len(pruned.deleted)

    def _prune_kept(self) -> int:
        """Try the kept chains again: the jobs that needed them may have been deleted. Return how many are deleted."""
        kept, self._kept = self._kept, {}
        deleted = 0
        for ended, chain_ids in kept.items():
            ids = sorted(chain_ids)
            for start in range(0, len(ids), self._batch_size):
                last_jobs = self._store.last_jobs.read(ids[start : start + self._batch_size])
                deleted += self._prune((last_job.job_id for last_job in last_jobs.values()), ended)
        return deleted


def _beyond_retention(
    now: datetime, statuses: tuple[str, ...] | None, types: tuple[str, ...] | None
) -> list[EndedChains]:
    """Return the chains of these statuses and types whose retention has expired by this project's rules."""
    rules = [rule.ended(now) for rule in retention_rules(get_registry()) if statuses is None or rule.status in statuses]
    if types is None:
        return rules
    return [replace(ended, types=tuple(name for name in ended.types or () if name in types)) for ended in rules]


def _final(statuses: Iterable[str]) -> tuple[str, ...]:
    given = (statuses,) if isinstance(statuses, str) else tuple(statuses)
    for status in given:
        if status not in FINAL:
            raise ValueError(f"Chains that are {status!r} cannot be pruned: pass some of {', '.join(FINAL)}.")
    return tuple(dict.fromkeys(str(status) for status in given))


@dataclass(frozen=True)
class Rule:
    """How long chains of some types that ended with some status are kept.

    ``keyed``: whether chains are deleted even if their deduplication keys can still match.
    """

    status: str
    kept: timedelta
    keyed: bool
    types: tuple[str, ...]

    def ended(self, now: datetime) -> EndedChains:
        return EndedChains((self.status,), now - self.kept, self.types, self.keyed)

    def last(self, now: datetime) -> UUID:
        """Return the id at which most rounds end. Later ids belong to young chains, or to hosts with fast clocks."""
        return first_id_at(now - self.kept - min(self.kept * DELAY_SHARE, MAX_DELAY))


def retention_rules(registry: Registry) -> list[Rule]:
    """Return the rules of a project's types, slices and settings. Types with the same rule share one walk."""
    retentions: Mapping[str, Retention] = {
        name: resolve_retention(*job_type.processor.policies) if job_type.processor else resolve_retention()
        for name, job_type in sorted(registry.job_types().items())
    }
    types: dict[tuple[str, float, bool], list[str]] = {}
    for name, retention in retentions.items():
        for status in sorted(FINAL):
            if (seconds := retention.seconds(status)) is not None:
                types.setdefault((status, seconds, not retention.keeps_keyed), []).append(name)
    return [
        Rule(status, timedelta(seconds=min(seconds, MAX_AGE.total_seconds())), keyed, tuple(names))
        for (status, seconds, keyed), names in types.items()
    ]
