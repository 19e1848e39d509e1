"""Lanes: types whose jobs are claimed together, and how their attempts are made and where they run."""

from collections.abc import Mapping
from dataclasses import dataclass

from django_jobchains.running import AbortSignal
from django_jobchains.store import ClaimedJob
from django_jobchains.worker.slots import Slots

Claimed = tuple[ClaimedJob, AbortSignal]


@dataclass(frozen=True)
class Lane:
    """``leases``: the types, each with the seconds of its leases. ``batch_limit``: one attempt takes so many jobs."""

    place: Slots
    leases: Mapping[str, float]
    batch_limit: int | None = None

    def room(self) -> int:
        """How many jobs to claim now."""
        if self.batch_limit is None:
            return self.place.room()
        return self.batch_limit if self.place.free() else 0
