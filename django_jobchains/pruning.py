"""Deleting what ended long ago, batch by batch, beside workers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from django_jobchains.ids import first_id_at, milliseconds_of
from django_jobchains.job_types import JobType, name_of
from django_jobchains.statuses import FINAL, Status
from django_jobchains.store import Ended, Place, get_store

MOST_IN_A_BATCH = 10_000
#: Chains that a job needed are looked at again at the end, when that job may be gone: so many of them.
MOST_KEPT = 100_000
#: Nothing is older, and no database fails to count so far back.
LONGEST = timedelta(days=365 * 1000)
#: What the clock of a host that makes ids may be ahead of the database's: chains made by one that is further ahead go
#: later. When a chain ended is the database's time, as what it is compared with.
SKEW = timedelta(days=1)

#: Told after each batch: the chains deleted so far, and the share of the way that is behind it, 0 to 1.
OnBatch = Callable[[int, float], object]


def prune(
    older_than: timedelta,
    statuses: Iterable[str] = (Status.COMPLETED, Status.CANCELLED),
    types: "Iterable[str | JobType[Any, Any]] | None" = None,
    *,
    batch: int = 1_000,
    dry_run: bool = False,
    using: str | None = None,
    on_batch: OnBatch | None = None,
) -> int:
    """Deletes the chains that ended so long ago, by the database's clock, and returns how many.

    Failed chains are kept unless ``statuses`` names them; ``types`` are the types of the chains, None is every one. A
    chain is kept while a job of another chain that is not completed has it as a blocker, and while somebody has it
    locked. Each batch, of at most so many chains, is a short transaction of its own, or part of the caller's.
    ``dry_run`` counts and deletes nothing. ``on_batch`` is told how many are gone, and how far it is (0 to 1).
    """
    return _Prune(_seconds(older_than), _final(statuses), _names(types), _size(batch), using, on_batch, dry_run).run()


aprune = sync_to_async(prune)


class _Prune:
    def __init__(
        self,
        seconds: float,
        statuses: tuple[str, ...],
        types: tuple[str, ...] | None,
        batch: int,
        using: str | None,
        on_batch: OnBatch | None,
        is_dry_run: bool,
    ) -> None:
        self._store = get_store(using)
        self._ended = Ended(statuses, self._store.time_ago(seconds))
        self._walks = list(_walks(self._ended, types, self._store.time_ago(0)))
        self._batch = batch
        self._on_batch = on_batch
        self._is_dry_run = is_dry_run
        self._deleted = 0
        self._kept: set[UUID] = set()

    def run(self) -> int:
        for number, walk in enumerate(self._walks):
            self._walk(walk, number)
        while self._kept and not self._is_dry_run and self._prune_kept():
            pass
        return self._deleted

    def _walk(self, walk: "_Walk", number: int) -> None:
        place: Place | None = Place(walk.first)
        first: UUID | None = None
        while place:
            found = self._store.find_ended(walk.column, walk.value, place, walk.last, self._batch, self._ended)
            first = first or found.first
            if found.job_ids:
                self._prune(found.job_ids)
            place = found.next
            if self._on_batch:
                behind = _share(first, place.chain_id, walk.last) if first and place else 1
                self._on_batch(self._deleted, (number + behind) / len(self._walks))

    def _prune(self, job_ids: Iterable[UUID]) -> int:
        pruned = self._store.prune(list(job_ids), self._ended, is_dry_run=self._is_dry_run)
        self._deleted += len(pruned.deleted)
        if len(self._kept) < MOST_KEPT:
            self._kept |= pruned.kept
        return len(pruned.deleted)

    def _prune_kept(self) -> int:
        """Whether any of them could go now: what needed them may have been deleted in a later batch."""
        kept, self._kept = sorted(self._kept), set()
        chunks = [kept[start : start + self._batch] for start in range(0, len(kept), self._batch)]
        return sum(self._prune(tail.job_id for tail in self._store.tails(chunk).values()) for chunk in chunks)


@dataclass(frozen=True)
class _Walk:
    """Along the index of a status or a chain type, over a range of ids."""

    column: str
    value: str
    first: UUID
    last: UUID


def _share(first: UUID, here: UUID, last: UUID) -> float:
    """How much of a walk is behind it, if chains were started evenly."""
    begin, now, end = (milliseconds_of(id_) for id_ in (first, here, last))
    return (now - begin) / max(1, end - begin)


def _walks(ended: Ended, types: tuple[str, ...] | None, now: datetime) -> Iterator[_Walk]:
    """Ids are time-ordered, and what ended before a time was made before it: so the newer ones are left out.

    Ids that were given may not be. Most of those lie far in the future, where else is nothing, so that is looked at.
    """
    ranges = [
        (UUID(int=0), first_id_at(ended.before + SKEW)),
        (first_id_at(now + SKEW), UUID(int=2**128 - 1)),
    ]
    column, values = ("status", ended.statuses) if types is None else ("chain_type_name", types)
    for value in values:
        for first, last in ranges:
            yield _Walk(column, value, first, last)


def _seconds(older_than: timedelta) -> float:
    if not isinstance(older_than, timedelta):
        raise TypeError(f"older_than is a timedelta, not {type(older_than).__name__}.")
    if older_than < timedelta(0):
        raise ValueError(f"older_than={older_than!r}: 0 or more.")
    return min(older_than, LONGEST).total_seconds()


def _final(statuses: Iterable[str]) -> tuple[str, ...]:
    given = (statuses,) if isinstance(statuses, str) else tuple(statuses)
    for status in given:
        if status not in FINAL:
            raise ValueError(f"{status!r}: chains are pruned that are {', '.join(sorted(FINAL))}.")
    return tuple(dict.fromkeys(str(status) for status in given))


def _names(types: "Iterable[str | JobType[Any, Any]] | None") -> tuple[str, ...] | None:
    if types is None:
        return None
    return tuple(dict.fromkeys(map(name_of, [types] if isinstance(types, str | JobType) else types)))


def _size(batch: int) -> int:
    if not 1 <= batch <= MOST_IN_A_BATCH:
        raise ValueError(f"batch={batch}: 1 to {MOST_IN_A_BATCH} chains.")
    return batch
