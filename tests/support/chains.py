"""Chains in every status that operations may find, and the contents of the tables."""

from collections.abc import Callable, Iterable
from typing import Any

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.processors import JobType
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob
from tests.support.jobs import MAIL, SHIP, claim, failed_try, finished

ship: JobType[Any, Any] = JobType(SHIP)
mail: JobType[Any, Any] = JobType(MAIL)


def attempt(store: Store, chain: Chain) -> ClaimedJob:
    """Claim the current job of a chain, and no other."""
    Job.objects.filter(pk=chain.refresh().current_job_id).update(priority=99)
    [job] = claim(store, 1)
    assert job.chain_id == chain.id
    return job


def go_on(chain: Chain, **options: Any) -> None:
    """Complete the current job with a continuation."""
    with chains.current_job(chain.id) as current:
        current.continue_with(mail, **options)


def blocked(store: Store) -> Chain:
    return ship.enqueue(blockers=[mail.enqueue(delay=3600)])


def pending(store: Store) -> Chain:
    return ship.enqueue()


def scheduled(store: Store) -> Chain:
    return ship.enqueue(delay=3600)


def backing_off(store: Store) -> Chain:
    chain = ship.enqueue()
    store.attempts.reschedule([failed_try(attempt(store, chain), delay_seconds=3600)])
    return chain.refresh()


def running(store: Store) -> Chain:
    chain = ship.enqueue()
    attempt(store, chain)
    return chain.refresh()


def asked_to_stop(store: Store) -> Chain:
    chain = running(store)
    chains.cancel(chain)
    return chain.refresh()


def completed(store: Store) -> Chain:
    chain = ship.enqueue()
    store.attempts.finish([finished(attempt(store, chain))])
    return chain.refresh()


def failed(store: Store) -> Chain:
    chain = ship.enqueue()
    store.attempts.fail([failed_try(attempt(store, chain))])
    return chain.refresh()


def cancelled(store: Store) -> Chain:
    chain = ship.enqueue()
    chains.cancel(chain)
    return chain.refresh()


Make = Callable[[Store], Chain]

#: A function for each status in which the job is the first of its chain.
STATES: dict[str, Make] = {
    make.__name__: make
    for make in (blocked, pending, scheduled, backing_off, running, asked_to_stop, completed, failed, cancelled)
}


def everything() -> list[list[Any]]:
    """Return every column of every row."""
    models: list[Any] = [Job, FailedAttempt, JobBlocker]
    return [list(model.objects.order_by("pk").values()) for model in models]


def statuses(chain: Chain) -> list[str]:
    return list(chain.jobs.values_list("status", flat=True))


def each(made: Iterable[Chain]) -> set[Any]:
    return {chain.id for chain in made}
