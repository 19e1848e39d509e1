"""Whether a worker is well: live (its loops go on) and ready (it reaches the database and hears wake-ups)."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django_jobchains.notifications import Listener, Notifier
from django_jobchains.worker.event_loop import AsyncSlots
from django_jobchains.worker.lanes import Place
from django_jobchains.worker.maintenance import Rounds
from django_jobchains.worker.threads import OwnedThread

#: A step that takes longer than any statement should: the worker is not ready.
SLOW_SECONDS = 10.0
#: What the database's answer may be late.
LATE_SECONDS = 5.0
#: A worker process reports each second. So long may it be silent,
SILENT_SECONDS = 5.0
#: and so long until it is first heard of.
START_SECONDS = 60.0


@dataclass(frozen=True)
class Health:
    """``problems``: why it is not live, or not ready. There is no payload and no secret in it.

    ``processes``: of a supervisor, the health of each of its workers.
    """

    worker: str
    is_live: bool
    is_ready: bool
    problems: tuple[str, ...] = ()
    slots: int = 0
    running: int = 0
    processes: tuple["Health", ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {**vars(self), "problems": list(self.problems)}
        values["processes"] = [process.as_json() for process in self.processes]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Health":
        processes = tuple(cls.from_json(process) for process in values["processes"])
        return cls(**{**values, "problems": tuple(values["problems"]), "processes": processes})


class Process(Protocol):
    """What a supervisor knows of a worker."""

    health: Health | None

    @property
    def silent_seconds(self) -> float: ...


def health_of_processes(
    name: str, processes: Mapping[int, Process | None], *, is_stopping: bool, is_stuck: bool
) -> Health:
    """Live: every worker is, and was heard of lately. Ready: at least one is. ``None``: it is to be started again."""
    known = [process.health for process in processes.values() if process and process.health]
    broken = ["the supervisor does not look at its processes"] if is_stuck else []
    broken += [f"process {number}: {text}" for number, process in processes.items() for text in _broken(process)]
    problems = broken + [
        f"process {number}: {text}"
        for number, process in processes.items()
        if process and not _broken(process)
        for text in (process.health.problems if process.health else ["starting"])
    ]
    if is_stopping:
        broken, problems = [], ["stopping"]
    able = [process for process in processes.values() if process and process.health and process.health.is_ready]
    is_ready = not (is_stopping or is_stuck) and any(not _broken(process) for process in able)
    slots, running = sum(health.slots for health in known), sum(health.running for health in known)
    return Health(name, not broken, is_ready, tuple(problems), slots, running, tuple(known))


def _broken(process: Process | None) -> list[str]:
    if process is None:
        return ["ended, and is to be started again"]
    limit = SILENT_SECONDS if process.health else START_SECONDS
    if process.silent_seconds > limit:
        return [f"not heard of for {process.silent_seconds:.0f} s"]
    return list(process.health.problems) if process.health and not process.health.is_live else []


class Checkup:
    """Looks at a worker's parts, from any thread, without asking the database."""

    def __init__(
        self,
        *,
        worker: str,
        threads: Collection[OwnedThread],
        rounds: Rounds,
        places: Sequence[Place],
        notifier: Notifier,
        liveness_seconds: float,
    ) -> None:
        self._worker = worker
        self._threads = threads
        self._rounds = rounds
        self._places = places
        self._notifier = notifier
        self._liveness_seconds = liveness_seconds
        self._listener: Listener | None = None
        self._since = time.monotonic()
        #: What keeps it from being ready: it starts, retires, or stops.
        self._state = "starting"

    def started(self, listener: Listener) -> None:
        self._listener = listener
        if self._state == "starting":
            self._state = ""

    def leaves(self, state: str) -> None:
        """From now on it is not ready; ``state`` is "retiring" or "stopping"."""
        self._state = state

    @property
    def has_begun(self) -> bool:
        """Whether it started, and reached the database: it can take the place of another, even if it has to poll."""
        return self._state != "starting" and self._rounds.reached_at is not None

    def health(self) -> Health:
        broken = self._broken()
        problems = broken or self._hindered()
        return Health(
            worker=self._worker,
            is_live=not broken,
            is_ready=not problems,
            problems=tuple(problems),
            slots=sum(place.count for place in self._places),
            running=sum(place.running for place in self._places),
        )

    def _broken(self) -> list[str]:
        if self._state == "stopping":  # it ends by a deadline of its own
            return []
        if self._state == "starting":
            seconds = time.monotonic() - self._since
            return [f"still starting after {seconds:.0f} s"] if seconds > self._liveness_seconds else []
        ended = [f"{thread.name} has ended" for thread in self._threads if not thread.is_alive]
        return ended + self._busy(self._liveness_seconds)

    def _hindered(self) -> list[str]:
        if self._state:
            return [self._state]
        failing = [f"{thread.name} fails and is tried again" for thread in self._threads if thread.is_failing]
        return failing + self._busy(SLOW_SECONDS) + self._unreached() + self._deaf()

    def _busy(self, limit: float) -> list[str]:
        steps = [(thread.name, thread.busy_seconds) for thread in self._threads]
        steps += [("the event loop", place.lag_seconds) for place in self._places if isinstance(place, AsyncSlots)]
        return [f"{name} is busy with one step for {seconds:.0f} s" for name, seconds in steps if seconds > limit]

    def _unreached(self) -> list[str]:
        if self._rounds.reached_at is None:
            return ["the database was not reached yet"]
        seconds = time.monotonic() - self._rounds.reached_at
        is_late = seconds > 2 * self._rounds.seconds + LATE_SECONDS
        return [f"the database was last reached {seconds:.0f} s ago"] if is_late else []

    def _deaf(self) -> list[str]:
        if not self._notifier.carries_hints or (self._listener and self._listener.is_alive):
            return []
        return ["wake-ups are not heard; it polls"]
