"""Every operation takes a constant number of statements, however many ids, steps or blockers it affects."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import Store
from tests.support.chains import mail, ship
from tests.support.jobs import claim, failed_try

pytestmark = pytest.mark.django_db

SIZES = (1, 10, 1_000)
LINKS = 10_000


def pending(store: Store, count: int) -> list[Chain]:
    return chains.enqueue_many([ship.item() for _ in range(count)])


def blocked(store: Store, count: int) -> list[Chain]:
    blocker = mail.enqueue(delay=3600)
    return chains.enqueue_many([ship.item(blockers=[blocker]) for _ in range(count)])


def running(store: Store, count: int) -> list[Chain]:
    made = pending(store, count)
    assert len(claim(store)) == count
    return made


def failed(store: Store, count: int) -> list[Chain]:
    made = pending(store, count)
    store.attempts.fail([failed_try(job) for job in claim(store)])
    return made


def awaited(store: Store, count: int) -> list[Chain]:
    """Return chains that each block a job."""
    made = pending(store, count)
    chains.enqueue_many([mail.item(blockers=[chain]) for chain in made])
    return made


def dependents(store: Store, count: int) -> list[Chain]:
    """Return one chain with this many blockers."""
    return [ship.enqueue(blockers=pending(store, count))]


#: The largest number of statements of a call, without BEGIN and COMMIT.
CALLS: dict[str, tuple[int, Callable[[Store, int], list[Chain]], Callable[[list[Chain]], Any]]] = {
    "cancel pending": (7, pending, chains.cancel),
    "cancel blocked": (7, blocked, chains.cancel),
    "cancel running": (11, running, chains.cancel),
    "cancel awaited": (10, awaited, chains.cancel),
    "retry": (5, failed, chains.retry),
    "run_now": (4, pending, chains.run_now),
    "reschedule": (4, pending, partial(chains.reschedule, delay=60)),
    "delete pending": (12, pending, chains.delete),
    "delete blocked": (12, blocked, chains.delete),
    "delete with blockers": (16, dependents, partial(chains.delete, cascade=True)),
}


def statements(call: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        call()
    return len(captured)


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_takes_a_constant_number_of_statements(store, name):
    most, make, call = CALLS[name]
    numbers = []
    for size in SIZES:
        made = make(store, size)
        numbers.append(statements(partial(call, made)))
        JobBlocker.objects.all().delete()
        Job.objects.all().delete()
    assert len(set(numbers)) == 1
    assert numbers[0] <= most


@pytest.mark.parametrize("levels", [1, 2, 100])
def test_each_level_of_blockers_takes_two_more_statements(levels):
    chain = ship.enqueue()
    for _ in range(levels):
        chain = ship.enqueue(blockers=[chain])
    most = CALLS["delete with blockers"][0] + 2 * (levels - 1)
    assert statements(lambda: chains.delete(chain, cascade=True)) <= most
    assert not Job.objects.exists()


def long_chain(links: int) -> Chain:
    """Return a chain of completed jobs and a pending last one."""
    chain = ship.enqueue()
    columns = Job.objects.filter(pk=chain.id).values().get()
    steps = [
        Job(**{**columns, "id": new_id(), "chain_index": index, "status": "completed"}) for index in range(1, links)
    ]
    steps[-1].status = "pending"
    Job.objects.filter(pk=chain.id).update(status="completed")
    Job.objects.bulk_create(steps, batch_size=1_000)
    return chain.refresh()


#: The order matters: the last call leaves no rows for the next measurement.
LONG_CHAIN_VERBS: dict[str, Callable[[Chain], Any]] = {
    "reschedule": lambda chain: chains.reschedule(chain.current_job_id, delay=60),
    "cancel": chains.cancel,
    "retry": lambda chain: chains.retry(chain.current_job_id),
    "delete": partial(chains.delete, cascade=True),
}


@pytest.mark.slow
def test_a_chain_of_10_000_jobs_takes_no_more_statements_than_a_short_one():
    numbers: dict[int, list[int]] = {}
    for links in (2, LINKS):
        chain = long_chain(links)
        assert chain.jobs.count() == links
        numbers[links] = [statements(partial(call, chain)) for call in LONG_CHAIN_VERBS.values()]
        assert not Job.objects.exists()
    assert numbers[2] == numbers[LINKS]
