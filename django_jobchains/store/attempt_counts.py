"""How many attempts ended in a minute or an hour, as workers told; counting jobs would read them all."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django_jobchains.models import AttemptCount
from django_jobchains.store.dialect import Dialect
from django_jobchains.store.errors import retried

MINUTE, HOUR = AttemptCount.Span.MINUTE.value, AttemptCount.Span.HOUR.value
#: How many of them are shown, the one that is not over among them,
SHOWN = {MINUTE: 60, HOUR: 24}
#: for how many seconds they are kept,
KEPT_SECONDS = {MINUTE: 2 * 3_600, HOUR: 8 * 86_400}
#: and how many rows of each are deleted at once.
PRUNE_LIMIT = 2_000

_COLUMNS = (
    "type_name text, age_seconds float, completed int, failed int, crashed int, seconds float, longest_seconds float"
)
_KEY = "span, starts_at, type_name"
_SUMS = ("completed", "failed", "crashed", "seconds")


class TypeTally(NamedTuple):
    """Attempts of a type that ended about ``age_seconds`` ago. What the ``crashed`` ones took is not known."""

    type_name: str
    age_seconds: float
    completed: int
    failed: int
    crashed: int
    seconds: float
    longest_seconds: float


class SpanCount(NamedTuple):
    """Attempts of all types that ended in ``span`` seconds; ``failed``: those that crashed too."""

    span: int
    starts_at: datetime
    completed: int
    failed: int


class TypeCount(NamedTuple):
    type_name: str
    completed: int
    failed: int
    mean_seconds: float
    longest_seconds: float


class AttemptCounts(Dialect):
    @retried
    def add_counts(self, tallies: Sequence[TypeTally]) -> None:
        """Adds to the minutes and the hours, by the database's clock, in which these attempts ended.

        Of a minute only the sum of all types is kept.
        """
        sums = ", ".join(f"{name} = {self.attempt_count}.{name} + excluded.{name}" for name in _SUMS)
        longest = f"{self.attempt_count}.longest_seconds"
        # In one order: workers that add to the same rows must not wait for each other.
        self._fetch(
            f"INSERT INTO {self.attempt_count} ({_KEY}, {', '.join(_SUMS)}, longest_seconds) "
            f"SELECT {_KEY}, {', '.join(f'sum({name})' for name in _SUMS)}, max(longest_seconds) FROM ("
            f"SELECT spans.span, {self._start_of('spans.span', self._after('clock.now', 'd.age_seconds * -1'))} "
            f"AS starts_at, CASE spans.span WHEN {HOUR} THEN d.type_name ELSE '' END AS type_name, "
            f"{', '.join(_SUMS)}, longest_seconds FROM {self._rows(_COLUMNS)} CROSS JOIN {self.clock} "
            f"CROSS JOIN (SELECT {MINUTE} AS span UNION ALL SELECT {HOUR}) AS spans) AS told "
            f"WHERE true GROUP BY {_KEY} ORDER BY {_KEY} ON CONFLICT ({_KEY}) DO UPDATE SET {sums}, longest_seconds = "
            f"CASE WHEN {longest} > excluded.longest_seconds THEN {longest} ELSE excluded.longest_seconds END "
            "RETURNING span",
            [json.dumps([tally._asdict() for tally in tallies])],
        )

    @retried
    def prune_counts(self) -> int:
        """Deletes rows that are kept no longer, ``PRUNE_LIMIT`` of each span at most; returns how many."""
        # Those that another worker deletes at the moment are left to it.
        old = ", ".join(
            f"old_{span} AS MATERIALIZED (SELECT {_KEY} FROM {self.attempt_count} WHERE span = {span} "
            f"AND starts_at < {self._after(self.now, str(-seconds))} LIMIT {PRUNE_LIMIT} "
            f"{self._locked(self.attempt_count)})"
            for span, seconds in KEPT_SECONDS.items()
        )
        keys = " UNION ALL ".join(f"SELECT {_KEY} FROM old_{span}" for span in KEPT_SECONDS)
        rows = self._fetch(f"WITH {old} DELETE FROM {self.attempt_count} WHERE ({_KEY}) IN ({keys}) RETURNING span", [])
        return len(rows)

    @retried
    def counts_by_time(self, now: datetime) -> list[SpanCount]:
        """The minutes and hours up to ``now`` in which attempts ended, as many as are shown of them."""
        parts = " UNION ALL ".join(
            f"SELECT span, starts_at, completed, failed + crashed AS failed {self._shown(span)}" for span in SHOWN
        )
        rows = self._fetch(
            f"SELECT span, {self._as_text('starts_at')}, sum(completed), sum(failed) FROM ({parts}) AS shown "
            "GROUP BY span, starts_at",
            [self._time_text(now) for _ in SHOWN],
        )
        return [SpanCount(span, self._time(starts_at), *sums) for span, starts_at, *sums in rows]

    @retried
    def counts_by_type(self, now: datetime, limit: int) -> list[TypeCount]:
        """The types whose attempts ended in these hours, those that took longest on average in front."""
        rows = self._fetch(
            "SELECT type_name, sum(completed), sum(failed + crashed), "
            "COALESCE(sum(seconds) / NULLIF(sum(completed + failed), 0), 0.0) AS mean, max(longest_seconds) "
            f"{self._shown(HOUR)} GROUP BY type_name ORDER BY mean DESC, type_name LIMIT {limit:d}",
            [self._time_text(now)],
        )
        return [TypeCount(*row) for row in rows]

    def _shown(self, span: int) -> str:
        since = self._after("d.now", str(-span * SHOWN[span]))
        return (
            f"FROM {self._row('now timestamptz')} CROSS JOIN {self.attempt_count} AS ended "
            f"WHERE span = {span} AND starts_at > {since} AND starts_at <= d.now"
        )
