"""What a worker does besides jobs: renew leases, take back those of dead workers, and watch over its own."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from uuid import UUID

from django_jobchains.announcing import announce
from django_jobchains.hygiene import tidy
from django_jobchains.leases import HeldLeases
from django_jobchains.notifications import EVERY, Hint
from django_jobchains.policies import Backoff
from django_jobchains.store import AttemptKey, Effects, ReapedJob, Store
from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import BlockedJobsSwept, JobReaped, LeaseLost
from django_jobchains.texts import log_text
from django_jobchains.worker.presence import Heartbeat
from django_jobchains.worker.pruner import Pruner
from django_jobchains.worker.tally import AttemptTally
from django_jobchains.worker.threads import LOCK_SECONDS, waiting

logger = getLogger("django_jobchains")

#: Jobs taken back in one transaction,
REAP_LIMIT = 100
#: and blocked jobs looked at in one.
SWEEP_LIMIT = 1_000
#: Rows of unused deduplication keys that are deleted in one statement.
FORGET_LIMIT = 10_000
#: Between two looks at the leases that hints ask for.
CHECK_AGAIN_SECONDS = 0.1


class Reaper:
    """Takes back jobs whose lease ran out, except those that this worker holds and ends itself.

    It also applies what workers deferred because of a lock. ``backoffs``: those of the job types that this worker
    knows; ``backoff`` is for all others.
    """

    def __init__(
        self,
        store: Store,
        leases: HeldLeases,
        *,
        worker: str,
        backoff: Backoff,
        backoffs: Mapping[str, Backoff],
        max_crashes: int,
        seconds: float,
        on_reaped: Callable[[Sequence[ReapedJob]], None],
    ) -> None:
        self._store = store
        self._leases = leases
        self._worker = worker
        self._backoff = backoff
        self._backoffs = backoffs
        self._max_crashes = max_crashes
        self._on_reaped = on_reaped
        #: The deferred write up to which the others were looked at; None: begin again.
        self._applied: int | None = None
        self.seconds = seconds

    def step(self) -> bool:
        """Whether there may be more."""
        held = [lease.id for lease in self._leases.held()]
        effects = Effects()
        with self._store.waits_at_most(LOCK_SECONDS):
            reaped = self._store.reap(
                REAP_LIMIT, self._backoff, self._max_crashes, held, effects, backoffs=self._backoffs
            )
            self._applied = self._store.apply_deferred(REAP_LIMIT, self._applied or 0, effects)
        effects.stopped_jobs.update(job.id for job in reaped)  # their workers may be alive, and only slow
        announce(self._store.using, effects)
        for job in reaped:
            report(JobReaped(self._worker, job.id, job.type_name, job.status, job.crashes))
        if reaped:
            self._on_reaped(reaped)
        return len(reaped) == REAP_LIMIT or self._applied is not None


class Sweeper:
    """Looks for blocked jobs that should not be blocked, a part of them at a time. There must not be any: it says so.

    It also deletes what the store keeps about deduplication keys that are no longer in use. ``is_on_duty``: whether
    this worker is the one that looks. All of them would find the same.
    """

    def __init__(self, store: Store, *, worker: str, seconds: float, is_on_duty: Callable[[], bool]) -> None:
        self._store = store
        self._worker = worker
        self._is_on_duty = is_on_duty
        self._after: UUID | None = None
        self.seconds = seconds

    def step(self) -> bool:
        """Whether there are more to look at."""
        if not self._is_on_duty():
            self._after = None
            return False
        effects = Effects()
        with self._store.waits_at_most(LOCK_SECONDS):
            freed, self._after = self._store.sweep(SWEEP_LIMIT, self._after, effects)
        announce(self._store.using, effects)
        report(BlockedJobsSwept(self._worker, len(freed), tuple(freed)))
        forgotten = self._store.forget_keys(FORGET_LIMIT)
        return self._after is not None or forgotten == FORGET_LIMIT


Part = Heartbeat | AttemptTally | Reaper | Sweeper | Pruner


class Rounds:
    """Lets parts look at the tables from time to time; on one thread, and so on one connection."""

    def __init__(self, *parts: Part) -> None:
        self._due_at = {part: _first_look(part) for part in parts}
        #: Between two looks at the database, at the least.
        self.seconds = min(part.seconds for part in parts)
        #: When the database last answered.
        self.reached_at: float | None = None
        self.pause = threading.Event()

    def step(self) -> None:
        """Lets the parts look that are due. One that raises keeps none of the others from it."""
        errors: list[BaseException] = []
        for part in self._due_at:
            if time.monotonic() >= self._due_at[part]:
                try:
                    self._let_look(part)
                except BaseException as error:
                    errors.append(error)
                    tidy()  # the next part uses the same connection
        for other in errors[1:]:
            logger.warning("Another part of the maintenance failed too, and is tried again: %s", log_text(other))
        if errors:
            raise errors[0]
        with waiting():
            self.pause.wait(max(min(self._due_at.values()) - time.monotonic(), 0))
        self.pause.clear()

    def hasten(self, part: Part) -> None:
        """Lets it look now, or once more if it just does; from any thread."""
        self._due_at[part] = 0.0
        self.pause.set()

    def _let_look(self, part: Part) -> None:
        self._due_at[part] = time.monotonic() + part.seconds  # before it looks: it may be hastened meanwhile
        has_more = True
        try:
            has_more = part.step()
        finally:
            if has_more:
                self._due_at[part] = time.monotonic() + part.rest_seconds if isinstance(part, Pruner) else 0.0
        if not (isinstance(part, Heartbeat | AttemptTally | Pruner) and part.is_failing):
            self.reached_at = time.monotonic()


def _first_look(part: Part) -> float:
    """At once, but for pruning: a worker has something else to do then, and others were started together with it."""
    return time.monotonic() + random.uniform(0.5, 1) * part.seconds if isinstance(part, Pruner) else 0.0  # noqa: S311


class LeaseKeeper:
    """Renews the worker's leases, all in one statement; looks at them at once when a hint says that one was lost."""

    def __init__(self, leases: HeldLeases, worker: str, seconds: float) -> None:
        self._leases = leases
        self._worker = worker
        self._seconds = seconds
        self._asked = threading.Event()
        self._checked_at = 0.0
        self.pause = threading.Event()

    def on_hint(self, hint: Hint) -> None:
        """A hint may be forged: it is a reason to look, and a flood of them is one look in a while."""
        if hint.kind == "ownership_lost" and not self._asked.is_set() and self._is_mine(hint.subject):
            self._asked.set()
            self.pause.set()

    def _is_mine(self, subject: str) -> bool:
        if subject == EVERY:
            return bool(len(self._leases))
        try:
            return self._leases.holds(UUID(subject))
        except ValueError:
            return False

    def step(self) -> None:
        self._leases.connect()
        self._report(self._leases.renew_due())
        seconds = self._check_if_asked()
        with waiting():
            self.pause.wait(seconds)
        self.pause.clear()

    def _check_if_asked(self) -> float:
        """Looks, if that was not done just now; the seconds until the next step."""
        if not self._asked.is_set():
            return self._seconds
        if (left := self._checked_at + CHECK_AGAIN_SECONDS - time.monotonic()) > 0:
            return min(left, self._seconds)
        self._asked.clear()
        self._checked_at = time.monotonic()
        self._report(self._leases.check())
        return self._seconds

    def _report(self, lost: dict[AttemptKey, str]) -> None:
        for (job_id, _), reason in lost.items():
            report(LeaseLost(self._worker, job_id, reason))
