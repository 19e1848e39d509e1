"""Who is told, after the commit: who waits for the chain, who runs the job, who may run the next ones."""

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.notifications import chain_finished, job_scheduled, ownership_lost
from tests.attempts.work import committed
from tests.completing.work import ENDED, OPEN, approval, asked_to_stop, finish, pending, recorded, running, typed

pytestmark = committed


@pytest.mark.parametrize("make", [pending, running])
def test_finishing_tells_who_waits_and_who_runs_it(make: object) -> None:
    chain = make()  # type: ignore[operator]
    with recorded() as sent:
        finish(chain)
    expected = {chain_finished(chain.id)} | ({ownership_lost(chain.id)} if make is running else set())
    assert (set(sent), len(sent)) == (expected, len(expected))


def test_a_step_tells_who_runs_it_and_who_may_run_the_next() -> None:
    chain = running()
    with recorded() as sent:
        with chains.complete(chain.id) as current:
            current.continue_with(typed, 1)
        assert set(sent) == {ownership_lost(chain.id), job_scheduled(typed.name)}
        sent.clear()
        finish(chain, 2)
    assert sent == [chain_finished(chain.id)]


def test_a_step_of_a_chain_that_was_asked_to_stop_is_its_end() -> None:
    chain = asked_to_stop()
    with recorded() as sent, chains.complete(chain.id) as current:
        current.continue_with(typed, 1)
    assert set(sent) == {ownership_lost(chain.id), chain_finished(chain.id)}


def test_the_end_tells_who_may_run_what_it_frees() -> None:
    chain = pending()
    typed.enqueue(1, blockers=[chain])
    with recorded() as sent:
        finish(chain)
    assert set(sent) == {chain_finished(chain.id), job_scheduled(typed.name)}


def test_doing_nothing_tells_nobody() -> None:
    made = [make() for make in OPEN + ENDED]
    with recorded() as sent:
        for chain in made:
            with chains.complete(chain.id):
                pass
    assert sent == []


def test_what_is_undone_tells_nobody() -> None:
    chain, other = running(), pending()
    with recorded() as sent:
        with pytest.raises(ZeroDivisionError), chains.complete(chain.id) as current:
            current.finish()
            raise ZeroDivisionError
        with transaction.atomic():
            finish(chain)
            transaction.set_rollback(True)
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), chains.complete(chain.id) as current:
                current.finish()
                raise ZeroDivisionError
            finish(other)
    assert sent == [chain_finished(other.id)]


def test_hints_go_out_after_the_outermost_commit() -> None:
    chain = pending()
    with recorded() as sent:
        with transaction.atomic():
            with chains.complete(chain.id) as current:
                current.continue_with(approval)
                current.finish()
            assert sent == []
        assert chain_finished(chain.id) in sent
