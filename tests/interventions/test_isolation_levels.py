"""Operations and completions of one chain at the isolation levels of PostgreSQL above READ COMMITTED."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound
from django_jobchains.models import Job
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob
from tests.interventions.test_races import Again, result_of
from tests.support.chains import attempt, failed, ship, statuses
from tests.support.chains import go_on as go_on_outside
from tests.support.connections import Actor, committing
from tests.support.jobs import claim, finished, next_job

pytestmark = [committing, pytest.mark.postgresql, pytest.mark.slow]

levels = pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
Call = Callable[[Store], Any]


def in_order(level: str, first: Call, second: Call) -> list[Any]:
    """Run both at this level, the second while the first holds its locks; return their results."""

    def hold(store: Store) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        return first(store)

    def wait(store: Store) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        return second(store)

    holding = Actor(hold, holds=True).start().until_stopped()
    waiting = Actor(wait).start().until_blocked_or_ended()
    holding.go_on()
    return [holding.result(), result_of(waiting, second)]


@pytest.fixture
def chain():
    return ship.enqueue()


@pytest.fixture
def job(store, chain):
    return attempt(store, chain)


@pytest.fixture(autouse=True)
def _patient_cancels(monkeypatch):
    """Wait for a lock for as long as a slow machine may need to release it."""
    monkeypatch.setattr("django_jobchains.store.chains.CANCEL_SECONDS", 20)


def go_on(job: ClaimedJob) -> Call:
    return Again(lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]), job)


@levels
@pytest.mark.parametrize("cancels_first", [True, False])
def test_a_cancelled_chain_does_not_go_on(store, chain, job, level, cancels_first):
    calls: list[Call] = [lambda store: chains.cancel(chain.id), go_on(job)]
    results = in_order(level, *(calls if cancels_first else calls[::-1]))
    assert {chain.id} in results
    assert {job.key} in results
    assert statuses(chain) == ["completed", "cancelled"]
    assert claim(store) == []


@levels
@pytest.mark.parametrize("deletes_first", [True, False])
def test_a_deleted_chain_is_gone(chain, job, level, deletes_first):
    calls: list[Call] = [lambda store: chains.delete(chain.id), go_on(job)]
    results = in_order(level, *(calls if deletes_first else calls[::-1]))
    assert {chain.id} in results
    assert (set() if deletes_first else {job.key}) in results
    assert not Job.objects.exists()


@levels
def test_of_two_retries_only_one_moves_the_job(store, level):
    chain = failed(store)
    results = in_order(level, lambda store: chains.retry(chain.id), lambda store: chains.retry(chain.id))
    assert results == [{chain.id}, set()]


@levels
def test_of_two_deletes_the_second_finds_nothing(chain, level):
    with pytest.raises(ChainNotFound):
        in_order(level, lambda store: chains.delete(chain.id), lambda store: chains.delete(chain.id))
    assert not Job.objects.exists()


@levels
def test_a_chain_that_goes_on_is_retried_at_its_current_job(store, level):
    chain = failed(store)

    def fail_again(store: Store) -> None:
        chains.retry(chain)
        go_on_outside(chain)
        chains.cancel(chain)

    _, retried = in_order(level, fail_again, lambda store: chains.retry(chain.id))
    assert retried == {chain.refresh().current_job_id}
    assert statuses(chain) == ["completed", "pending"]
