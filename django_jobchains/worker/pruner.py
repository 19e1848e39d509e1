"""Chains that are kept no longer are deleted by the workers, little by little, each type after a time of its own."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from logging import getLogger
from uuid import UUID

from django.db import IntegrityError

from django_jobchains.hygiene import tidy
from django_jobchains.ids import first_id_at
from django_jobchains.policies import Retention, retention_of
from django_jobchains.processors import Registry
from django_jobchains.pruning import LONGEST, SKEW
from django_jobchains.statuses import FINAL
from django_jobchains.store import Ended, Place, Store
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import ChainsPruned
from django_jobchains.texts import log_text
from django_jobchains.worker.threads import LOCK_SECONDS

logger = getLogger("django_jobchains")

#: Index entries looked at in one statement,
LOOK_LIMIT = 5_000
#: and chains deleted in one transaction.
BATCH = 500
#: After each of those steps it rests for this share of the time it took,
REST = 0.5
#: and all workers together may spend this share of their time on looking at all that stays.
SHARE_OF_FULL_ROUNDS = 0.01
#: Chains are looked at for the first time this share of their retention late, so that most have ended by then.
LATE = 0.1
LATEST = timedelta(hours=1)

_BEGINNING, _END = UUID(int=0), UUID(int=2**128 - 1)


@dataclass(frozen=True)
class Rule:
    """How long chains of some types are kept that ended with some status."""

    status: str
    kept: timedelta
    keyed: bool
    types: tuple[str, ...]

    def ended(self, now: datetime) -> Ended:
        return Ended((self.status,), now - self.kept, self.types, self.keyed)

    def last(self, now: datetime) -> UUID:
        """Return where most rounds end: ids are time-ordered, and those behind it are young, or of a fast clock."""
        return first_id_at(now - self.kept - min(self.kept * LATE, LATEST))

    def last_of_all(self, now: datetime) -> UUID:
        """Return where a full round ends: behind it are no ids of hosts whose clocks are less than ``SKEW`` ahead."""
        return first_id_at(now - self.kept + SKEW)


@dataclass(frozen=True)
class _Walk:
    """Along the index of the rule's status, over a range of ids."""

    rule: Rule
    ended: Ended
    first: UUID
    last: UUID


class Pruner:
    """A part of the rounds. A round looks at what has become old since the last one, a step at a time.

    What stayed then, and ended or became free later, is found by a full round, over everything: the rarer, the longer
    it takes. So kept history costs nothing in most rounds. Ids hold the time of the host that made them; they only say
    where to look. What is deleted is decided by the time of the chain's end, which is the database's. Of types that
    this project does not know nothing is deleted: another knows how long they are kept. Workers do not wait for each
    other: what one deletes the others skip.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[Rule],
        *,
        worker: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rules = rules
        self._worker = worker
        self._clock = clock
        #: The id before which each rule's chains were looked at; without those of the first, full round.
        self._reached: dict[Rule, UUID] = {}
        self._walks: deque[_Walk] = deque()
        self._place = Place(_BEGINNING)
        #: Found, to be deleted.
        self._batches: deque[tuple[Ended, list[UUID]]] = deque()
        self._deleted = 0
        self._is_full = False
        self._looked_seconds = 0.0
        self._full_at: float | None = None
        #: Before the next step of a round.
        self.rest_seconds = 0.0
        #: The last step failed.
        self.is_failing = False
        self.seconds = seconds

    def step(self) -> bool:
        """Whether the round goes on. What goes wrong is told and harms nothing: a later round tries it again."""
        began = self._clock()
        try:
            goes_on = self._step()
            self.is_failing = False
        except Exception as error:
            goes_on = False
            self._failed(error)
        self.rest_seconds = (self._clock() - began) * REST
        return goes_on

    def _step(self) -> bool:
        if self._batches:
            self._delete(*self._batches.popleft())
        elif self._walks:
            self._look(self._walks[0])
        else:
            self._begin()
        if self._batches or self._walks:
            return True
        self._end()
        return False

    def _begin(self) -> None:
        now = self._store.time_ago(0)
        if self._full_at is None:
            # Of many that were started together one begins at once.
            self._full_at = self._clock() + random.random() * (self._workers() - 1) * self.seconds  # noqa: S311
        self._is_full = self._clock() >= self._full_at
        self._looked_seconds = 0.0
        for rule in self._rules:
            self._walks.extend(self._ways(rule, now))
            self._reached[rule] = rule.last(now)
        self._place = Place(self._walks[0].first) if self._walks else self._place

    def _ways(self, rule: Rule, now: datetime) -> Iterator[_Walk]:
        ended = rule.ended(now)
        if not self._is_full:
            last = rule.last(now)
            yield _Walk(rule, ended, self._reached.get(rule, last), last)
            return
        yield _Walk(rule, ended, _BEGINNING, rule.last_of_all(now))
        # Ids that were given lie anywhere: most of them before that, or here, where no others are.
        yield _Walk(rule, ended, first_id_at(now + SKEW), _END)

    def _look(self, walk: _Walk) -> None:
        began = self._clock()
        found = self._store.find_ended("status", walk.rule.status, self._place, walk.last, LOOK_LIMIT, walk.ended)
        self._looked_seconds += self._clock() - began
        ids = list(found.job_ids)
        self._batches.extend((walk.ended, ids[start : start + BATCH]) for start in range(0, len(ids), BATCH))
        if found.next:
            self._place = found.next
            return
        self._walks.popleft()
        if self._walks:
            self._place = Place(self._walks[0].first)

    def _delete(self, ended: Ended, ids: list[UUID]) -> None:
        try:
            with self._store.waits_at_most(LOCK_SECONDS):
                self._deleted += len(self._store.prune(ids, ended).deleted)
        except IntegrityError as error:
            # Something outside refers to one of them: the others go.
            if len(ids) > 1:
                half = len(ids) // 2
                self._batches.extendleft([(ended, ids[half:]), (ended, ids[:half])])
            else:
                logger.warning("Job %s and its chain cannot be pruned: %s", ids[0], log_text(error))

    def _end(self) -> None:
        if self._is_full:
            share = self._looked_seconds / SHARE_OF_FULL_ROUNDS
            self._full_at = self._clock() + share * self._workers()
            self._is_full = False
        if self._deleted:
            report(ChainsPruned(self._worker, self._deleted))
        self._deleted = 0

    def _workers(self) -> int:
        return max(1, self._store.count_workers())

    def _failed(self, error: Exception) -> None:
        """Told once: a database that is away is reported by others."""
        if not self.is_failing:
            logger.warning("Pruning by worker %s failed; its work goes on: %s", self._worker, log_text(error))
        self.is_failing = True
        tidy()


def rules_of(registry: Registry) -> list[Rule]:
    """What the types of a project say, or their slices, or the settings: types with the same rule share one walk."""
    retentions: Mapping[str, Retention] = {
        name: retention_of(*job_type.processor.policies) if job_type.processor else retention_of()
        for name, job_type in sorted(registry.job_types().items())
    }
    types: dict[tuple[str, float, bool], list[str]] = {}
    for name, retention in retentions.items():
        for status in sorted(FINAL):
            if (seconds := retention.seconds(status)) is not None:
                types.setdefault((status, seconds, not retention.keeps_keyed), []).append(name)
    return [
        Rule(status, timedelta(seconds=min(seconds, LONGEST.total_seconds())), keyed, tuple(names))
        for (status, seconds, keyed), names in types.items()
    ]
