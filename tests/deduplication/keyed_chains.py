"""Chains with a deduplication key, and steps that bring them into a status."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django_jobchains import chains
from django_jobchains.chains import Chain, Deduplicate
from django_jobchains.processors import JobType
from django_jobchains.store import Store
from tests.support.jobs import MAIL, SHIP, claim, failed_try

ship = JobType(SHIP)
mail = JobType(MAIL)

KEY = "order-7"
#: Each scope, with the window that it needs.
SCOPES = {
    "incomplete": {},
    "any": {},
    "incomplete_or_recent": {"window": timedelta(days=1)},
}


def start(input=None, job_type=ship, **options):
    """Enqueue a chain with the key and options of ``Deduplicate``. The default window is one day if one is required."""
    window = SCOPES[options.get("scope", "incomplete")]
    return job_type.enqueue(input, deduplicate=Deduplicate(**{"key": KEY, **window, **options}))


# Steps


def run(store, chain):
    [job] = claim(store)
    assert job.chain_id == chain.id
    return job


def continue_chain(store, chain, **options):
    """Complete the chain's current job with a continuation."""
    with chains.current_job(chain.id) as current:
        current.continue_with(mail, **options)


def continue_later(store, chain):
    continue_chain(store, chain, delay=3600)


def continue_blocked(store, chain):
    continue_chain(store, chain, blockers=[mail.enqueue(delay=3600)])


def finish(store, chain):
    chains.complete(chain.id, "done")


def fail(store, chain):
    store.attempts.fail([failed_try(run(store, chain))])


def back_off(store, chain):
    store.attempts.reschedule([failed_try(run(store, chain), delay_seconds=60)])


def cancel(store, chain):
    chains.cancel(chain)


def postpone(store, chain):
    chains.reschedule(chain, delay=3600)


Step = Callable[[Store, Chain], Any]

#: Chains that may still run: at their first job, or at a continuation.
INCOMPLETE = {
    "pending": (),
    "scheduled": (postpone,),
    "backing off": (back_off,),
    "running": (run,),
    "asked to stop": (run, cancel),
    "pending at its continuation": (continue_chain,),
    "scheduled at its continuation": (continue_later,),
    "blocked at its continuation": (continue_blocked,),
    "running its continuation": (continue_chain, run),
    "pending at its third job": (continue_chain, continue_chain),
}
ENDED = {
    "completed": (finish,),
    "failed": (fail,),
    "cancelled": (cancel,),
    "completed at its continuation": (continue_chain, finish),
    "failed at its continuation": (continue_chain, fail),
    "cancelled at its continuation": (continue_chain, cancel),
}


def apply_steps(store, chain, steps):
    for step in steps:
        step(store, chain)
