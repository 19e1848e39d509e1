"""What ends the claim loop's wait: a hint, a free slot, a continuation, or the time."""

import threading
import time
from collections.abc import Collection
from math import inf

from django_jobchains.notifications.hints import REQUERY_SECONDS
from django_jobchains.worker.threads import waiting

#: The shortest wait for the next start that a rate allows: of the worker that has claimed the last one, and of others,
#: which would otherwise compete for each start.
MIN_START_WAIT_SECONDS, MIN_RATE_WAIT_SECONDS = 0.005, 0.05
#: The longest time between two notifications of peers while all queries fill the slots.
MAX_NOTIFY_SECONDS = 1.0


class WakeUp:
    """Wakes the claim loop, which alone waits for it. Can be set from any thread.

    ``is_eager``: whether every outcome wakes the claim loop, because the worker may wait for it before it ends.
    """

    def __init__(self, *, is_eager: bool = False) -> None:
        self.is_eager = is_eager
        #: Whether the claim loop could claim jobs. False while the worker stops.
        self.accepts_hints = True
        #: Whether the claim loop waits for a free slot: otherwise it has found fewer jobs than it has slots for.
        self.needs_slots = True
        self._changed = threading.Condition()
        self._is_set = self._has_free_slot = False
        #: The job types that the next query, and the second one after a hint, are for; None for all.
        self._types: frozenset[str] | None = frozenset()
        #: Whether the next query is for all types, the time by which one must be, and whether the last one was.
        self._is_for_all, self._query_all_at, self._was_for_all = True, 0.0, True
        #: Until when to wait after the last query for jobs, 0 before that; whether the last query was for records only.
        self._until, self._was_for_records = 0.0, False
        self._second_query_at: float | None = None
        #: When to query for jobs that other workers are to claim first.
        self._late_at: float | None = None
        self._hinted_at = 0.0
        self._was_fruitless = False
        #: Whether the next query is for the worker's share of jobs, so that its peers may have skipped the hint.
        self._is_shared = False
        #: The earliest time of the next notification of peers, and how long to wait after it.
        self._notify_at, self._notify_seconds = 0.0, REQUERY_SECONDS

    def set(self, types: Collection[str] | None = None) -> None:
        """Let the claim loop query now, for jobs of these types; None for all. Records are queried in any case."""
        if not (self._is_set and self._is_for_all):
            with self._changed:
                if types is None:
                    self._is_for_all = True
                else:
                    self._add(types)
                self._is_set = True
                self._changed.notify()

    def _add(self, types: Collection[str] | None) -> None:
        self._types = None if types is None or self._types is None else self._types.union(types)

    def slot_is_free(self) -> None:
        """Wake the claim loop if it waits for a slot. Call when an attempt has ended.

        If an attempt ends during a query, the result of the query decides whether its slot is needed.
        """
        if not self._has_free_slot:
            with self._changed:
                self._has_free_slot = True
                if self.needs_slots:
                    self._changed.notify()

    @property
    def must_query(self) -> bool:
        """Whether the claim loop would query now instead of waiting."""
        return self._is_set or self._needs_free_slot

    @property
    def _needs_free_slot(self) -> bool:
        return self._has_free_slot and self.needs_slots

    @property
    def will_query_soon(self) -> bool:
        """Whether a hint changes nothing, because the claim loop queries within milliseconds anyway."""
        return self.must_query or (self._second_query_at is not None and self._was_fruitless)

    def query_in(self, seconds: float, types: Collection[str] | None = None, *, is_shared: bool = False) -> None:
        """Let the claim loop query because of a hint: after some seconds, or now and once more a little later.

        ``types``: as for ``set``.

        The second query is needed because senders leave out hints that follow closely. While queries find nothing, a
        hint that arrives before the second query waits for it. So a flood of hints, forged or not, costs one query per
        ten milliseconds.
        """
        with self._changed:
            self._is_shared |= is_shared
            self._add(types)
            if seconds:
                self._late_at = min(self._late_at or inf, time.monotonic() + seconds)
            else:
                self._query_now_and_again()
            self._changed.notify()

    def _query_now_and_again(self) -> None:
        self._hinted_at = time.monotonic()
        if self._second_query_at is None or not self._was_fruitless:
            self._second_query_at = self._hinted_at + REQUERY_SECONDS
            self._is_set = True

    def begin_query(self) -> Collection[str] | None:
        """Call before a query. Anything set from now on causes another query.

        Return the job types to query for; None for all. A query for some types does not delay the next one for all.
        Records are queried in any case, so there are no types if only their time has come.
        """
        with self._changed:
            now = time.monotonic()
            is_asked = self._is_set or self._next_query_at(inf) <= now
            self._was_for_records = not (is_asked or self._is_for_all or self._needs_free_slot) and now < self._until
            types = self._types if is_asked else frozenset[str]() if self._was_for_records else None
            self._until = self._until if self._was_for_records else 0.0
            if self._is_for_all or self._needs_free_slot or self._query_all_at <= now or types is None:
                types, self._query_all_at = None, 0.0  # If this query fails, the next one is for all types too.
            self._was_for_all = types is None
            self._is_set = self._is_for_all = self._has_free_slot = False
            self._late_at = None
            if self._second_query_at is not None and now >= self._second_query_at:
                was_hinted_since = self._hinted_at > self._second_query_at - REQUERY_SECONDS
                self._second_query_at = self._hinted_at + REQUERY_SECONDS if was_hinted_since else None
            if self._second_query_at is None:
                self._types = frozenset()
            return types

    def record_query(self, *, found: bool, is_full: bool) -> None:
        """Call after a query. ``found``: whether there were jobs to claim. ``is_full``: whether they took all slots."""
        self._was_fruitless = not found
        if is_full:
            self._is_for_all = True
        else:
            self._notify_at, self._notify_seconds = 0.0, REQUERY_SECONDS
        if self._is_shared and is_full:
            self._second_query_at, self._types = time.monotonic() + REQUERY_SECONDS, None
        elif not self.is_second_query_due:
            self._is_shared = False

    def must_notify_peers(self) -> bool:
        """Return whether a worker without free slots must check for due jobs whose hint its peers skipped.

        Once for each such hint. While all queries fill the slots, the time between two notifications grows, because the
        peers probably have no free slots either.
        """
        if self.is_second_query_due or not self._is_shared or time.monotonic() < self._notify_at:
            return False
        self._is_shared = False
        self._notify_at = time.monotonic() + self._notify_seconds
        self._notify_seconds = min(2 * self._notify_seconds, MAX_NOTIFY_SECONDS)
        return True

    @property
    def is_second_query_due(self) -> bool:
        return self._second_query_at is not None

    def wait(self, seconds: float, records_seconds: float = inf) -> None:
        """Wait for something that is set, or for one of these times: of the next query for all types, or of records."""
        now = time.monotonic()
        until = min(now + seconds, self._until) if self._was_for_records else now + seconds
        if self._was_for_all:
            self._query_all_at = until
        self._until = min(until, self._query_all_at)
        until = min(self._until, now + records_seconds)
        with waiting(), self._changed:
            while not self.must_query and (left := self._next_query_at(until) - time.monotonic()) > 0:
                self._changed.wait(left)

    def _next_query_at(self, until: float) -> float:
        return min(at for at in (until, self._second_query_at, self._late_at) if at is not None)
