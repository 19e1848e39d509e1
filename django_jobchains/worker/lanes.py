"""Lanes: types whose jobs are claimed together, and how their attempts are made and where they run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django_jobchains.attempts import Attempt
from django_jobchains.batch_attempts import BatchAttempt
from django_jobchains.processors import Processor
from django_jobchains.running import AbortSignal
from django_jobchains.store import ClaimedJob

AnyAttempt = Attempt | BatchAttempt
Claimed = tuple[ClaimedJob, AbortSignal]


def single(claimed: Sequence[Claimed], processor: Processor, **options: Any) -> Attempt:
    ((job, signal),) = claimed
    return Attempt(job, processor, signal=signal, **options)


class Place(Protocol):
    """Where attempts run: threads, or an event loop. ``count``: how many at once."""

    count: int

    @property
    def running(self) -> int: ...
    @property
    def stuck(self) -> int: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def has_waiting(self) -> bool: ...
    @property
    def is_hopeless(self) -> bool: ...
    def start(self) -> None: ...
    def attempts(self) -> Sequence[AnyAttempt]: ...
    def room(self) -> int: ...
    def free(self) -> int: ...
    def put(self, attempts: Sequence[Any]) -> None: ...
    def take_back(self, waited_seconds: float = ...) -> Sequence[AnyAttempt]: ...
    def close(self) -> None: ...
    def join(self, deadline: float) -> list[str]: ...
    def write_off(self, attempt: Any) -> bool: ...
    def stack_of(self, attempt: Any) -> str: ...


@dataclass(frozen=True)
class Lane:
    """``leases``: the types, each with the seconds of its leases. ``batch_limit``: one attempt takes so many jobs.
    ``make``: an attempt of what was claimed for it."""

    place: Place
    leases: Mapping[str, float]
    batch_limit: int | None = None
    make: Callable[..., AnyAttempt] = single

    def room(self) -> int:
        """How many jobs to claim now."""
        if self.batch_limit is None:
            return self.place.room()
        return self.batch_limit if self.place.free() else 0

    def free(self) -> int:
        """How many jobs could start at once."""
        return self.place.free() * (self.batch_limit or 1)
