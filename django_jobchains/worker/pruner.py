"""Retention: workers delete the chains whose retention has ended, in small steps."""

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from logging import getLogger
from uuid import UUID

from django.db import IntegrityError

from django_jobchains.chains.pruning import Rule, Walk, full_ranges
from django_jobchains.store import Store
from django_jobchains.store.retention import EndedChains
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import ChainsPruned
from django_jobchains.text.errors import log_text
from django_jobchains.worker.failure_log import FailureLog
from django_jobchains.worker.maintenance import PeriodicTask
from django_jobchains.worker.threads import LOCK_SECONDS

logger = getLogger("django_jobchains")


#: The number of index entries that one statement reads.
MAX_ENTRIES_PER_STEP = 5_000
#: The number of chains that one transaction deletes.
BATCH_SIZE = 500
#: The pause after each step, as a share of the time it took.
REST_SHARE = 0.5
#: The share of their time that all workers together may spend on full rounds.
FULL_ROUNDS_SHARE = 0.01


class Pruner(PeriodicTask):
    """A periodic task. Each round examines the chains that became old since the last one, in small steps.

    Chains that were kept then, and ended or were no longer needed later, are found by a full round over all chains. The
    longer a full round takes, the less often it runs, so kept history has no cost in most rounds. Ids contain the time
    of the host that created them, and only decide which chains are examined. The time of their end, by the database's
    clock, decides which chains are deleted. Chains of types that this project does not declare are not deleted: another
    project may share the database. Workers do not wait for each other: they skip the chains that another one is
    deleting.
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
        self.store = store
        self.rules = rules
        self.worker = worker
        self.seconds = seconds
        self.clock = clock
        #: For each rule, the id up to which chains have been examined. Empty before the first round, which is a full
        #: one.
        self._reached: dict[Rule, UUID] = {}
        self._walks: deque[Walk] = deque()
        #: The last jobs of the chains to delete next.
        self._batches: deque[tuple[EndedChains, Sequence[UUID]]] = deque()
        self._deleted = 0
        self._is_full = False
        self._search_seconds = 0.0
        self._full_at: float | None = None
        #: The pause before the next step of a round.
        self.rest_seconds = 0.0
        self.failures: FailureLog = FailureLog("Pruning by worker %s failed; its jobs still run: %s", self.worker)

    @property
    def first_seconds(self) -> float:
        """Later than other tasks, because a starting worker is busy."""
        return random.uniform(0.5, 1) * self.seconds  # noqa: S311

    def step(self) -> bool:
        """Take a step, and return whether the round continues. An error ends the round; a later one tries again."""
        began = self.clock()
        try:
            continues = self._step()
            self.failures.succeeded()
        except Exception as error:
            continues = False
            self.failures.failed(error)
        self.rest_seconds = (self.clock() - began) * REST_SHARE
        return continues

    def _step(self) -> bool:
        if self._batches:
            self._delete(*self._batches.popleft())
        elif self._walks:
            self._find(self._walks[0])
        else:
            self._begin()
        if self._batches or self._walks:
            return True
        self._end()
        return False

    def _begin(self) -> None:
        now = self.store.stats.time_ago(0)
        if self._full_at is None:
            # If several workers start together, about one of them begins its full round at once.
            self._full_at = self.clock() + random.random() * (self._workers() - 1) * self.seconds  # noqa: S311
        self._is_full = self.clock() >= self._full_at
        self._search_seconds = 0.0
        for rule in self.rules:
            ended, last = rule.ended(now), rule.last(now)
            ranges = full_ranges(ended, now) if self._is_full else [(self._reached.get(rule, last), last)]
            self._walks.extend(Walk(ended, "status", rule.status, *range_) for range_ in ranges)
            self._reached[rule] = last

    def _find(self, walk: Walk) -> None:
        began = self.clock()
        ids = walk.find(self.store, MAX_ENTRIES_PER_STEP)
        self._search_seconds += self.clock() - began
        self._batches.extend((walk.ended, ids[start : start + BATCH_SIZE]) for start in range(0, len(ids), BATCH_SIZE))
        if walk.is_over:
            self._walks.popleft()

    def _delete(self, ended: EndedChains, ids: Sequence[UUID]) -> None:
        try:
            with self.store.db.waits_at_most(LOCK_SECONDS):
                self._deleted += len(self.store.retention.prune(ids, ended).deleted)
        except IntegrityError as error:
            # A row outside of these tables refers to one of the chains. Halve the batch to delete the other chains.
            if len(ids) > 1:
                half = len(ids) // 2
                self._batches.extendleft([(ended, ids[half:]), (ended, ids[:half])])
            else:
                logger.warning("Job %s and its chain cannot be pruned: %s", ids[0], log_text(error))

    def _end(self) -> None:
        if self._is_full:
            share = self._search_seconds / FULL_ROUNDS_SHARE
            self._full_at = self.clock() + share * self._workers()
            self._is_full = False
        if self._deleted:
            report(ChainsPruned(self.worker, self._deleted))
        self._deleted = 0

    def _workers(self) -> int:
        return max(1, self.store.workers.count())
