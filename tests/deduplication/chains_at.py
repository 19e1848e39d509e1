"""Chains with a key, brought to where a test wants them."""

from collections.abc import Callable
from typing import Any

from django_jobchains import chains
from django_jobchains.chains import Chain, Deduplicate
from django_jobchains.processors import JobType
from django_jobchains.store import ClaimedJob, Store
from tests.store.jobs import MAIL, SHIP, claim, failed_try

ship: JobType[Any, Any] = JobType(SHIP)
mail: JobType[Any, Any] = JobType(MAIL)

KEY = "order-7"


def start(input: Any = None, job_type: JobType[Any, Any] = ship, **options: Any) -> Chain:
    """A chain of the key; the options of ``Deduplicate``."""
    return job_type.enqueue(input, deduplicate=Deduplicate(**{"key": KEY, **options}))


# Steps


def run(store: Store, chain: Chain) -> ClaimedJob:
    [job] = claim(store)
    assert job.chain_id == chain.id
    return job


def go_on(store: Store, chain: Chain, **options: Any) -> None:
    """Completes the chain's current job with a continuation."""
    with chains.complete(chain.id) as current:
        current.continue_with(mail, **options)


def go_on_later(store: Store, chain: Chain) -> None:
    go_on(store, chain, delay=3600)


def go_on_blocked(store: Store, chain: Chain) -> None:
    go_on(store, chain, blockers=[mail.enqueue(delay=3600)])


def finish(store: Store, chain: Chain) -> None:
    with chains.complete(chain.id) as current:
        current.finish("done")


def fail(store: Store, chain: Chain) -> None:
    store.fail([failed_try(run(store, chain))])


def back_off(store: Store, chain: Chain) -> None:
    store.reschedule([failed_try(run(store, chain), delay_seconds=60)])


def cancel(store: Store, chain: Chain) -> None:
    chains.cancel(chain)


def postpone(store: Store, chain: Chain) -> None:
    chains.reschedule(chain, delay=3600)


Step = Callable[[Store, Chain], Any]

#: Chains that may still run: at their first job, or at a continuation.
INCOMPLETE: dict[str, tuple[Step, ...]] = {
    "pending": (),
    "scheduled": (postpone,),
    "backing off": (back_off,),
    "running": (run,),
    "asked to stop": (run, cancel),
    "pending at its continuation": (go_on,),
    "scheduled at its continuation": (go_on_later,),
    "blocked at its continuation": (go_on_blocked,),
    "running its continuation": (go_on, run),
    "pending at its third job": (go_on, go_on),
}
ENDED: dict[str, tuple[Step, ...]] = {
    "completed": (finish,),
    "failed": (fail,),
    "cancelled": (cancel,),
    "completed at its continuation": (go_on, finish),
    "failed at its continuation": (go_on, fail),
    "cancelled at its continuation": (go_on, cancel),
}


def bring(store: Store, chain: Chain, steps: tuple[Step, ...]) -> None:
    for step in steps:
        step(store, chain)
