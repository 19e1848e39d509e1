"""Hints after the commit: for programs that wait for the chain, the worker of the job, and workers of the next jobs."""

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.notifications import chain_finished, job_scheduled, ownership_lost
from tests.completing.work import ENDED, OPEN, approval, asked_to_stop, finish, pending, recorded, running, typed
from tests.support.attempts import committed

pytestmark = committed


@pytest.mark.parametrize("make", [pending, running])
def test_a_finished_job_is_announced_to_waiters_and_its_worker(make):
    chain = make()
    with recorded() as sent:
        finish(chain)
    expected = {chain_finished(chain.id)} | ({ownership_lost(chain.id)} if make is running else set())
    assert (set(sent), len(sent)) == (expected, len(expected))


def test_a_step_is_announced_to_its_worker_and_workers_of_the_next_job():
    chain = running()
    with recorded() as sent:
        with chains.current_job(chain.id) as current:
            current.continue_with(typed, 1)
        assert set(sent) == {ownership_lost(chain.id), job_scheduled(typed.name)}
        sent.clear()
        finish(chain, 2)
    assert sent == [chain_finished(chain.id)]


def test_a_step_of_a_chain_that_was_asked_to_stop_is_announced_as_its_end():
    chain = asked_to_stop()
    with recorded() as sent, chains.current_job(chain.id) as current:
        current.continue_with(typed, 1)
    assert set(sent) == {ownership_lost(chain.id), chain_finished(chain.id)}


def test_jobs_that_become_due_are_announced():
    chain = pending()
    typed.enqueue(1, blockers=[chain])
    with recorded() as sent:
        finish(chain)
    assert set(sent) == {chain_finished(chain.id), job_scheduled(typed.name)}


def test_an_empty_block_sends_no_hint():
    made = [make() for make in OPEN + ENDED]
    with recorded() as sent:
        for chain in made:
            with chains.current_job(chain.id):
                pass
    assert sent == []


def test_a_rollback_sends_no_hint():
    chain, other = running(), pending()
    with recorded() as sent:
        with pytest.raises(ZeroDivisionError), chains.current_job(chain.id) as current:
            current.finish()
            raise ZeroDivisionError
        with transaction.atomic():
            finish(chain)
            transaction.set_rollback(True)
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), chains.current_job(chain.id) as current:
                current.finish()
                raise ZeroDivisionError
            finish(other)
    assert sent == [chain_finished(other.id)]


def test_hints_are_sent_after_the_outermost_commit():
    chain = pending()
    with recorded() as sent:
        with transaction.atomic():
            with chains.current_job(chain.id) as current:
                current.continue_with(approval)
                current.finish()
            assert sent == []
        assert chain_finished(chain.id) in sent
