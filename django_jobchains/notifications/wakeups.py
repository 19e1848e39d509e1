"""Wake up other processes after the store has changed something for them, and report jobs that failed with a blocker.

``with announced(store) as effects:`` collects the effects of the writes in the block. They are published when the
transaction that surrounds the block has been committed, and not at all if the block raises an error.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from logging import getLogger
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.apps import apps

from django_jobchains.db.connections import call_after_commit
from django_jobchains.notifications import (
    EVERY,
    chain_finished,
    freed_queue,
    job_scheduled,
    ownership_lost,
    publish_after_commit,
)
from django_jobchains.store import Store, get_store
from django_jobchains.store.rows import Effects, NewJob
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import (
    BlockedJobFailed,
    ChainCreated,
    ChainEnded,
    Event,
    JobCreated,
    JobUnblocked,
)
from django_jobchains.text.errors import log_error

if TYPE_CHECKING:
    from django_jobchains.telemetry.otel.tracing import SentSpans

logger = getLogger("django_jobchains")

#: Above this number of ended chains, one hint for all of them is sent: of thousands per second, only a few are awaited.
MAX_NAMED_CHAINS = 20


@contextmanager
def announced(store: Store) -> Iterator[Effects]:
    """Publish the effects of the writes in the block, unless it raises."""
    effects = Effects()
    yield effects
    publish(store.using, effects)


def publish(using: str, effects: Effects, reported: Collection[UUID] = frozenset()) -> None:
    """Send the hints of these effects, and report what happened, after the commit of the current transaction.

    ``reported``: chains whose end has been reported.
    """
    chains = effects.finished_chains if len(effects.finished_chains) <= MAX_NAMED_CHAINS else {EVERY}
    hints = {*map(chain_finished, chains), *map(ownership_lost, effects.stopped_jobs)}
    for name in effects.due_types:
        hints.add(job_scheduled(name, effects.due_counts.get(name)))
    hints.update(map(freed_queue, effects.freed_queues))
    if effects.freed_types:
        config: Any = apps.get_app_config("django_jobchains")  # It holds the project's registry.
        sharing = config.registry.sharing_limits()
        hints |= {job_scheduled(name) for freed in effects.freed_types for name in sharing.get(freed, ())}
    if hints:
        publish_after_commit(using, hints)
    if effects.failed_waiters:
        report_after_commit(using, [BlockedJobFailed("", *job) for job in effects.failed_waiters.values()])
    if effects.failure_jobs and observes(JobCreated, ChainCreated):
        for job_id, (type_name, queue) in effects.failure_jobs.items():
            created = JobCreated("", job_id, job_id, type_name, queue, 0, False)
            report_after_commit(using, [ChainCreated("", job_id, type_name), created])
    if effects.unblocked and observes(JobUnblocked):
        report_after_commit(using, [JobUnblocked("", *unblocked) for unblocked in effects.unblocked.items()])
    if effects.finished_chains and observes(ChainEnded):
        call_after_commit(using, partial(_report_ended, using, effects.finished_chains - set(reported)))


def report_after_commit(using: str, events: Collection[Event]) -> None:
    """Report events after the commit of the current transaction, and not at all if it is rolled back."""

    def report_all() -> None:
        for event in events:
            report(event)

    call_after_commit(using, report_all)


def report_created(
    using: str,
    jobs: Sequence[NewJob],
    effects: Effects,
    sent: "SentSpans | None" = None,
    replaced: Mapping[UUID, UUID] = MappingProxyType({}),
) -> None:
    """Report created jobs, and end their spans, after the commit of the current transaction.

    ``replaced``: new jobs that were not created, and the existing jobs that have their values. Their spans end too.
    """
    if sent is not None or (jobs and observes(JobCreated, ChainCreated)):
        call_after_commit(using, partial(_report_created, list(jobs), frozenset(effects.unblocked), sent, replaced))


def _report_created(
    jobs: Sequence[NewJob], unblocked: Collection[UUID], sent: "SentSpans | None", replaced: Mapping[UUID, UUID]
) -> None:
    if sent is not None:
        sent.end([job.id for job in jobs], replaced)
    if observes(ChainCreated):
        report(*[ChainCreated("", job.id, job.type_name) for job in jobs if not job.chain_index])
    if observes(JobCreated):
        created = [(job, bool(job.blockers) and job.id not in unblocked) for job in jobs]
        report(
            *[
                JobCreated("", job.id, job.chain_id, job.type_name, job.queue, job.chain_index, is_blocked)
                for job, is_blocked in created
            ]
        )


def _report_ended(using: str, chain_ids: Collection[UUID]) -> None:
    """Report the chains that have ended, in a separate statement. If it fails, nothing else is affected."""
    try:
        ended = get_store(using).chains.lifetimes(chain_ids)
    except Exception as error:
        log_error(logger, error, "The ends of chains could not be read for telemetry: %s")
        return
    for chain in ended:
        report(ChainEnded("", *chain))
