"""The health of a worker: live (its loops make progress) and ready (it reaches the database and receives wake-ups)."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django_jobchains.notifications import Listener, Notifier
from django_jobchains.store.workers import PoolState
from django_jobchains.worker.maintenance import PeriodicTasks
from django_jobchains.worker.options import WorkerContext
from django_jobchains.worker.slots import SlotPool
from django_jobchains.worker.threads import OwnedThread

#: A worker with a longer step is not ready, because no statement should take that long.
SLOW_SECONDS = 10.0
#: The tolerated delay of the database's response.
LATE_SECONDS = 5.0


@dataclass(frozen=True)
class Health:
    """The health of a worker, or of a supervisor. ``problems``: why it is not live or not ready, without secrets.

    ``pools``: its pools of child processes. ``processes``: the health of each worker process of a supervisor.
    """

    worker: str
    is_live: bool
    is_ready: bool
    problems: tuple[str, ...] = ()
    slots: int = 0
    running: int = 0
    processes: tuple["Health", ...] = ()
    pools: tuple[PoolState, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Health":
        processes = tuple(cls.from_json(process) for process in values["processes"])
        pools = tuple(PoolState(**pool) for pool in values["pools"])
        return cls(**{**values, "problems": tuple(values["problems"]), "processes": processes, "pools": pools})


class HealthMonitor:
    """Checks the components of a worker, from any thread and without a query."""

    def __init__(
        self,
        context: WorkerContext,
        threads: Collection[OwnedThread],
        maintenance: PeriodicTasks,
        pools: Sequence[SlotPool],
        notifier: Notifier,
    ) -> None:
        self._worker = context.worker
        self._liveness_seconds = context.settings.LIVENESS_SECONDS
        self._threads = threads
        self._maintenance = maintenance
        self._pools = pools
        self._notifier = notifier
        self._listener: Listener | None = None
        self._created_at = time.monotonic()
        #: Why the worker is not ready: "starting", "retiring" or "stopping".
        self._state = "starting"

    def started(self, listener: Listener) -> None:
        self._listener = listener
        if self._state == "starting":
            self._state = ""

    def set_state(self, state: str) -> None:
        """Report the worker as not ready from now on. ``state``: "retiring" or "stopping"."""
        self._state = state

    @property
    def has_begun(self) -> bool:
        """Whether the worker has started and reached the database, so that it can replace another."""
        return self._state != "starting" and self._maintenance.reached_at is not None

    def health(self) -> Health:
        broken = self._broken()
        problems = broken or self._not_ready()
        return Health(
            worker=self._worker,
            is_live=not broken,
            is_ready=not problems,
            problems=tuple(problems),
            slots=sum(pool.count for pool in self._pools),
            running=sum(pool.running for pool in self._pools),
            pools=tuple(state for pool in self._pools for state in pool.states()),
        )

    def _broken(self) -> list[str]:
        if self._state == "stopping":  # Stopping has its own deadline.
            return []
        if self._state == "starting":
            seconds = time.monotonic() - self._created_at
            return [f"still starting after {seconds:.0f} s"] if seconds > self._liveness_seconds else []
        ended = [f"{thread.name} has ended" for thread in self._threads if not thread.is_alive]
        return ended + self._busy(self._liveness_seconds)

    def _not_ready(self) -> list[str]:
        if self._state:
            return [self._state]
        failing = [f"{thread.name} fails and is retried" for thread in self._threads if thread.is_failing]
        problems = failing + self._busy(SLOW_SECONDS) + self._unreached()
        if self._notifier.carries_hints and not (self._listener and self._listener.is_alive):
            problems.append("the listener for wake-ups is not connected; the worker polls")
        return problems

    def _busy(self, limit: float) -> list[str]:
        steps = [(thread.name, thread.busy_seconds) for thread in self._threads]
        steps += [("the event loop", pool.lag_seconds) for pool in self._pools]
        return [f"{name} is busy with one step for {seconds:.0f} s" for name, seconds in steps if seconds > limit]

    def _unreached(self) -> list[str]:
        if self._maintenance.reached_at is None:
            return ["the database has not been reached yet"]
        seconds = time.monotonic() - self._maintenance.reached_at
        is_late = seconds > 2 * self._maintenance.seconds + LATE_SECONDS
        return [f"the database was last reached {seconds:.0f} s ago"] if is_late else []
