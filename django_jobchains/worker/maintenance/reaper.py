"""Takes back jobs whose lease has expired."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django_jobchains.attempts.outcome import backoff_seconds
from django_jobchains.policies import Backoff, BackoffFunction, default_backoff, resolve
from django_jobchains.store import CrashBackoff
from django_jobchains.telemetry import measured, report
from django_jobchains.telemetry.events import JobReaped
from django_jobchains.wakeups import announced
from django_jobchains.worker.context import WorkerContext
from django_jobchains.worker.threads import LOCK_SECONDS

#: The limit of jobs reaped, and of deferred writes applied, in one transaction.
REAP_LIMIT = 100


class Reaper:
    """A periodic task that takes back jobs whose lease has expired, except those that this worker still holds.

    It also applies the writes that workers deferred because of a lock.
    """

    def __init__(self, context: WorkerContext) -> None:
        options = context.options
        processors = options.registry.processors()
        known = {processor.job_type.name: resolve(*processor.policies) for processor in processors}
        self._context = context
        self._store = context.store
        #: By job type. The worker's own policy applies only to types that it serves.
        self._backoffs = {name: policy.backoff for name, policy in {**known, **options.policies}.items()}
        #: For types that this worker does not know.
        self._backoff = resolve().backoff
        self.seconds: float = context.settings.REAP_SECONDS
        #: The last deferred write that was read; None to start again with the first.
        self._applied: int | None = None

    def step(self) -> bool:
        """Reap a batch, and return whether there may be more."""
        held = [job_id for job_id, _ in self._context.leases.held()]
        backoffs = self._without_functions(held)
        waits = self._store.db.waits_at_most(LOCK_SECONDS)
        with announced(self._store) as effects, waits, measured("reap", self._context.worker):
            reaped = self._store.leases.reap(
                REAP_LIMIT, _plain(self._backoff), self._context.settings.MAX_CRASHES, held, effects, backoffs=backoffs
            )
            self._applied = self._store.deferred.apply(REAP_LIMIT, self._applied or 0, effects)
            effects.stopped_jobs.update(job.id for job in reaped)  # Their workers may only be slow.
        for job in reaped:
            report(JobReaped(self._context.worker, *job))
        if reaped:
            self._context.counter.crashed(job.type_name for job in reaped)
            self._context.wake.set()
        return len(reaped) == REAP_LIMIT or self._applied is not None

    def _without_functions(self, held: Collection[UUID]) -> dict[str, CrashBackoff]:
        """Return the backoffs by job type. Functions are called here, before the jobs are locked.

        A job whose lease expires after this call is retried after the default backoff.
        """
        backoffs: dict[str, CrashBackoff] = {name: _plain(backoff) for name, backoff in self._backoffs.items()}
        if all(isinstance(backoff, Backoff) for backoff in (self._backoff, *self._backoffs.values())):
            return backoffs
        waits: dict[str, dict[int, float]] = defaultdict(dict)
        for type_name, crashes in self._store.leases.expired(REAP_LIMIT, held):
            backoff = self._backoffs.get(type_name, self._backoff)
            if not isinstance(backoff, Backoff):
                waits[type_name][crashes + 1] = backoff_seconds(backoff, crashes + 1, None)
        return {**backoffs, **{name: _Waits(seconds) for name, seconds in waits.items()}}


@dataclass(frozen=True)
class _Waits:
    """The waits that a backoff function returned for some numbers of crashes."""

    by_crashes: Mapping[int, float]

    def seconds(self, crashes: int, /) -> float:
        return self.by_crashes.get(crashes, default_backoff().seconds(crashes))


def _plain(backoff: Backoff | BackoffFunction) -> Backoff:
    return backoff if isinstance(backoff, Backoff) else default_backoff()
