"""Retention: how long the chains of each type are kept after they have ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django_jobchains.db.ids import first_id_at
from django_jobchains.policies import Retention, resolve_retention
from django_jobchains.registry.registry import Registry
from django_jobchains.statuses import FINAL
from django_jobchains.store import EndedChains

#: No chain is older, and every database can subtract this from today's date.
MAX_AGE = timedelta(days=365 * 1000)
#: Chains are first examined when this additional share of their retention has passed. Most of them have ended by then.
DELAY_SHARE = 0.1
MAX_DELAY = timedelta(hours=1)


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
