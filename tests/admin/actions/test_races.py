"""What was chosen changes between the page and the answer: it is told, and nothing is done half."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.test import Client

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.ids import new_id
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, said, url
from tests.interventions.chains_at import attempt, everything, failed, go_on, scheduled, ship
from tests.store.jobs import finished

Meanwhile = Callable[[Store, Chain], Any]


def a_worker_finishes_it(store: Store, chain: Chain) -> None:
    chains.run_now(chain)
    store.finish([finished(attempt(store, chain))])


def somebody_deletes_it(store: Store, chain: Chain) -> None:
    chains.delete(chain)


@pytest.mark.parametrize("meanwhile", [a_worker_finishes_it, somebody_deletes_it])
@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb not in ("retry", "delete")])
def test_what_changes_after_the_rows_were_read_is_told(
    superuser: Client, store: Store, verb: str, meanwhile: Meanwhile
) -> None:
    """At the worst moment: when the verb is about to be done."""
    chain = scheduled(store).refresh()
    answer = answers(verb, chain)
    with just_before(verb, lambda: meanwhile(store, chain)):
        reply = superuser.post(url(verb, chain), answer)
    assert reply.status_code == 302
    [message] = said(reply)
    assert message in (
        "Nothing was changed: completed already.",
        "Nothing was changed: not there any more.",
        f"1 left as it is: completed already ({chain.id}).",
        f"1 left as it is: not there any more ({chain.id}).",
        f"1 left as it is: changed meanwhile ({chain.id}).",
    )
    assert not LogEntry.objects.exists(), "What was not done is not in the log."


def test_a_retry_of_what_was_retried_meanwhile_is_told(superuser: Client, store: Store) -> None:
    other, chain = failed(store), failed(store)
    with just_before("retry", lambda: chains.retry(chain)):
        reply = act_many(superuser, "retry", [other, chain])
    assert said(reply) == ["1 job retried.", f"1 left as it is: changed meanwhile ({chain.id})."]


@pytest.mark.parametrize("verb", ["run_now", "reschedule", "delete"])
def test_what_is_all_or_nothing_is_nothing_after_a_race(superuser: Client, store: Store, verb: str) -> None:
    rows = [scheduled(store).refresh() for _ in range(3)]

    def meanwhile() -> None:
        chains.delete(rows[1])

    with just_before(verb, meanwhile):
        reply = act_many(superuser, verb, rows, **answers(verb, *rows))
    assert said(reply) == ["Nothing was changed: not there any more."]
    assert {chain.id for chain in Chain.objects.filter(pk__in=[rows[0].id, rows[2].id])} == {rows[0].id, rows[2].id}
    assert rows[0].refresh().current_job.run_at == rows[0].current_job.run_at


def test_a_chain_that_has_gone_on_is_not_completed_at_another_step(superuser: Client, store: Store) -> None:
    chain = scheduled(store).refresh()
    answer = answers("complete", chain)
    go_on(chain, delay=3600)
    before = everything()
    reply = superuser.post(url("complete", chain), answer)
    assert said(reply) == [f"1 left as it is: the chain has gone on to another job ({chain.id})."]
    assert everything() == before


def test_a_database_error_is_told_and_logged(superuser: Client, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    chain = scheduled(store).refresh()
    before = everything()
    with patch("django_jobchains.chains.run_now", side_effect=OperationalError("deadlock detected")):
        reply = act(superuser, "run_now", chain)
    assert said(reply) == ["Nothing was changed: the database could not do it now, try again."]
    assert everything() == before
    assert "deadlock detected" in caplog.text


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_rows_that_are_gone_are_told_and_the_others_done(superuser: Client, store: Store, verb: str) -> None:
    chain, gone = failed(store) if verb == "retry" else scheduled(store).refresh(), new_id()
    before = everything()
    reply = act_many(superuser, verb, [chain, gone], **answers(verb, chain))
    assert f"1 left as it is: not there any more ({gone})." in said(reply)
    assert everything() != before


def test_a_page_for_a_chain_that_is_gone_is_not_found(superuser: Client, store: Store) -> None:
    chain = ship.enqueue()
    chains.delete(chain)
    assert superuser.get(url("cancel", chain)).status_code == 404
    assert act(superuser, "cancel", chain).status_code == 404


@contextmanager
def just_before(verb: str, meanwhile: Callable[[], Any]) -> Iterator[None]:
    """Runs something when the verb has been checked and is about to be done."""
    real = getattr(chains, verb)
    steps: list[str] = []

    def then(*args: Any, **options: Any) -> Any:
        if not steps:
            steps.append(verb)
            meanwhile()
        return real(*args, **options)

    with patch(f"django_jobchains.chains.{verb}", then):
        yield
    assert steps, "The step was not made."
