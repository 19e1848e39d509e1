"""Rows that change between the page and the action are reported, and nothing is changed in part."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.db.ids import new_id
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, messages_in, url
from tests.support.chains import attempt, everything, failed, go_on, scheduled, ship
from tests.support.jobs import finished


def worker_finishes(store: Store, chain: Chain) -> None:
    chains.run_now(chain)
    store.attempts.finish([finished(attempt(store, chain))])


def user_deletes(store: Store, chain: Chain) -> None:
    chains.delete(chain)


@pytest.mark.parametrize("meanwhile", [worker_finishes, user_deletes])
@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb not in ("retry", "delete")])
def test_changes_after_the_rows_were_read_are_reported(superuser, store, verb, meanwhile):
    """The row changes right before the action is performed."""
    chain = scheduled(store).refresh()
    answer = answers(verb, chain)
    with just_before(verb, lambda: meanwhile(store, chain)):
        reply = superuser.post(url(verb, chain), answer)
    assert reply.status_code == 302
    [message] = messages_in(reply)
    assert message in (
        "Nothing was changed: already completed.",
        "Nothing was changed: no longer exists.",
        f"1 row skipped: already completed ({chain.id}).",
        f"1 row skipped: no longer exists ({chain.id}).",
        f"1 row skipped: changed in the meantime ({chain.id}).",
    )
    assert not LogEntry.objects.exists(), "nothing was changed, so nothing may be logged"


def test_a_second_retry_is_reported(superuser, store):
    other, chain = failed(store), failed(store)
    with just_before("retry", lambda: chains.retry(chain)):
        reply = act_many(superuser, "retry", [other, chain])
    assert messages_in(reply) == ["1 job retried.", f"1 row skipped: changed in the meantime ({chain.id})."]


@pytest.mark.parametrize("verb", ["run_now", "reschedule", "delete"])
def test_all_or_nothing_actions_change_nothing_after_a_race(superuser, store, verb):
    rows = [scheduled(store).refresh() for _ in range(3)]

    def meanwhile() -> None:
        chains.delete(rows[1])

    with just_before(verb, meanwhile):
        reply = act_many(superuser, verb, rows, **answers(verb, *rows))
    assert messages_in(reply) == ["Nothing was changed: no longer exists."]
    assert {chain.id for chain in Chain.objects.filter(pk__in=[rows[0].id, rows[2].id])} == {rows[0].id, rows[2].id}
    assert rows[0].refresh().current_job.run_at == rows[0].current_job.run_at


def test_a_chain_that_has_continued_is_not_completed_at_another_step(superuser, store):
    chain = scheduled(store).refresh()
    answer = answers("complete", chain)
    go_on(chain, delay=3600)
    before = everything()
    reply = superuser.post(url("complete", chain), answer)
    assert messages_in(reply) == [f"1 row skipped: the chain has continued with another job ({chain.id})."]
    assert everything() == before


@pytest.mark.parametrize("model", ["chain", "job"])
@pytest.mark.parametrize("verb", ["retry", "run_now", "reschedule"])
def test_a_chain_that_continues_meanwhile_is_not_changed_at_another_step(superuser, store, verb, model):
    """The page showed the id of the first job, which also stands for the chain."""
    chain = failed(store) if verb == "retry" else scheduled(store).refresh()
    row = chain if model == "chain" else chain.current_job

    def meanwhile() -> None:
        chains.retry(chain)
        go_on(chain, delay=3600)
        if verb == "retry":
            chains.cancel(chain)

    answer = answers(verb, chain)
    with just_before(verb, meanwhile):
        reply = superuser.post(url(verb, row, model), answer)
    assert messages_in(reply) == ["Nothing was changed: the chain has continued with another job."]
    assert not LogEntry.objects.exists()


def test_a_database_error_is_reported_and_logged(superuser, store, caplog):
    chain = scheduled(store).refresh()
    before = everything()
    with patch("django_jobchains.chains.run_now", side_effect=OperationalError("deadlock detected")):
        reply = act(superuser, "run_now", chain)
    assert messages_in(reply) == ["Nothing was changed: a database error occurred, try again."]
    assert everything() == before
    assert "deadlock detected" in caplog.text


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_deleted_rows_are_reported_and_others_are_changed(superuser, store, verb):
    chain, gone = failed(store) if verb == "retry" else scheduled(store).refresh(), new_id()
    before = everything()
    reply = act_many(superuser, verb, [chain, gone], **answers(verb, chain))
    assert f"1 row skipped: no longer exists ({gone})." in messages_in(reply)
    assert everything() != before


def test_the_page_for_a_deleted_chain_is_not_found(superuser, store):
    chain = ship.enqueue()
    chains.delete(chain)
    assert superuser.get(url("cancel", chain)).status_code == 404
    assert act(superuser, "cancel", chain).status_code == 404


@contextmanager
def just_before(verb: str, meanwhile: Callable[[], Any]) -> Iterator[None]:
    """Run a function between the check of an action and its execution."""
    name = "current_job" if verb == "complete" else verb
    real = getattr(chains, name)
    steps: list[str] = []

    def then(*args: Any, **options: Any) -> Any:
        if not steps:
            steps.append(verb)
            meanwhile()
        return real(*args, **options)

    with patch(f"django_jobchains.chains.{name}", then):
        yield
    assert steps, "the action was not executed"
