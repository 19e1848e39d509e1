"""Prunes during other calls for the same chains: a prune does not wait, and no call finds half of a chain."""

from datetime import timedelta

import pytest

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound, JobNotFound
from django_jobchains.models import Job, JobBlocker
from tests.support.chains import cancelled, completed, mail, pending
from tests.support.connections import committing, holding, stopped_before, waiting

pytestmark = [committing, pytest.mark.slow]

#: Covers every statement on the job tables of a prune of one batch.
STEPS = range(1, 10)
NOW = timedelta(0)


def prune(store):
    return chains.prune(NOW)


def result_or_error(actor):
    try:
        return actor.result()
    except (ChainNotFound, JobNotFound) as error:
        return error


@pytest.fixture
def chain(store):
    return completed(store)


class TestNewDependentOfAChain:
    def test_chain_is_kept_if_the_dependent_came_first(self, chain):
        enqueueing = holding(lambda store: mail.enqueue(blockers=[chain]))
        pruning = waiting(prune)
        enqueueing.go_on()
        dependent = enqueueing.result()
        pruning.result()
        assert set(Job.objects.values_list("chain_id", flat=True)) == {chain.id, dependent.id}
        assert chains.prune(NOW) == 0

    @pytest.mark.postgresql
    def test_prune_does_not_wait_for_the_dependent(self, store, chain):
        other = completed(store)
        enqueueing = holding(lambda store: mail.enqueue(blockers=[chain]))
        assert chains.prune(NOW) == 1
        assert not Job.objects.filter(pk=other.id).exists()
        enqueueing.go_on()
        enqueueing.result()

    @pytest.mark.parametrize("step", STEPS)
    def test_dependent_gets_the_chain_or_an_error_at_any_statement(self, chain, step):
        pruning = stopped_before(step, prune)
        enqueueing = waiting(lambda store: mail.enqueue(blockers=[chain]))
        pruning.go_on()
        deleted, enqueued = result_or_error(pruning), result_or_error(enqueueing)
        if isinstance(enqueued, ChainNotFound):
            assert deleted == 1
            assert not Job.objects.exists()
        else:
            assert deleted == 0
            assert JobBlocker.objects.get().blocker_id == chain.id
            assert enqueued.refresh().status == "pending"
        assert pruning.conflicts == enqueueing.conflicts == []


@pytest.mark.parametrize("step", STEPS)
def test_retry_succeeds_or_raises_at_any_statement(store, step):
    chain = cancelled(store)
    pruning = stopped_before(step, prune)
    retrying = waiting(lambda store: chains.retry(chain.id))
    pruning.go_on()
    deleted, retried = result_or_error(pruning), result_or_error(retrying)
    if isinstance(retried, JobNotFound):
        assert deleted == 1
        assert not Job.objects.exists()
    else:
        assert (deleted, retried) == (0, {chain.id})
        assert chain.refresh().status == "pending"


@pytest.mark.parametrize("step", STEPS)
def test_concurrent_prunes_delete_each_chain_once(store, step):
    kept = pending(store)
    for _ in range(5):
        completed(store)
    first = stopped_before(step, prune)
    second = waiting(prune)
    first.go_on()
    counts = first.result(), second.result()
    assert sum(counts) <= 5
    assert sum(counts) + chains.prune(NOW) == 5
    assert set(Job.objects.values_list("chain_id", flat=True)) == {kept.id}
