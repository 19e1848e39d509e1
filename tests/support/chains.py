"""Chains in every status that operations may find, and the contents of the tables."""

from collections.abc import Callable

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.store import Store
from tests.support.jobs import MAIL, SHIP, claim, failed_try, finished, tables

ship = JobType(SHIP)
mail = JobType(MAIL)


def attempt(store, chain):
    """Claim the current job of a chain, and no other."""
    Job.objects.filter(pk=chain.refresh().current_job_id).update(priority=99)
    [job] = claim(store, 1)
    assert job.chain_id == chain.id
    return job


def go_on(chain, **options):
    """Complete the current job with a continuation."""
    with chains.current_job(chain.id) as current:
        current.continue_with(mail, **options)


def blocked(store):
    return ship.enqueue(blockers=[mail.enqueue(delay=3600)])


def pending(store):
    return ship.enqueue()


def scheduled(store):
    return ship.enqueue(delay=3600)


def backing_off(store):
    chain = ship.enqueue()
    store.attempts.reschedule([failed_try(attempt(store, chain), delay_seconds=3600)])
    return chain.refresh()


def running(store):
    chain = ship.enqueue()
    attempt(store, chain)
    return chain.refresh()


def asked_to_stop(store):
    chain = running(store)
    chains.cancel(chain)
    return chain.refresh()


def completed(store):
    chain = ship.enqueue()
    store.attempts.finish([finished(attempt(store, chain))])
    return chain.refresh()


def failed(store):
    chain = ship.enqueue()
    store.attempts.fail([failed_try(attempt(store, chain))])
    return chain.refresh()


def cancelled(store):
    chain = ship.enqueue()
    chains.cancel(chain)
    return chain.refresh()


Make = Callable[[Store], Chain]

#: A function for each status in which the job is the first of its chain.
STATES = {
    make.__name__: make
    for make in (blocked, pending, scheduled, backing_off, running, asked_to_stop, completed, failed, cancelled)
}


everything = tables


def statuses(chain):
    return list(chain.jobs.values_list("status", flat=True))


def each(made):
    return {chain.id for chain in made}
