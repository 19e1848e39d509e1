"""Rows that change between the page and the action are reported, and nothing is changed in part."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.db.models import QuerySet

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.records.operations import record_types_of
from tests.admin.browsing import PERMISSIONS, act, act_many, answers, messages_in, url
from tests.admin.records.site import MOVES, ExportAdmin, put, state_of
from tests.records.models import Export, Upload
from tests.support.chains import attempt, everything, failed, go_on, scheduled, ship
from tests.support.connections import holding
from tests.support.jobs import finished


def worker_finishes(store, chain):
    chains.run_now(chain)
    store.attempts.finish([finished(attempt(store, chain))])


def user_deletes(store, chain):
    chains.delete(chain)


@contextmanager
def just_before(verb, meanwhile):
    """Call a function between the check of an action and its execution."""
    name = "current_job" if verb == "complete" else verb
    real, calls = getattr(chains, name), [meanwhile]

    def then(*args, **options):
        if calls:
            calls.pop()()
        return real(*args, **options)

    with patch(f"django_jobchains.chains.{name}", then):
        yield
    assert not calls, "the action was not executed"


@pytest.mark.parametrize("meanwhile", [worker_finishes, user_deletes])
@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb not in ("retry", "delete")])
def test_changes_after_the_rows_were_read_are_reported(superuser, store, verb, meanwhile):
    chain = scheduled(store).refresh()
    with just_before(verb, lambda: meanwhile(store, chain)):
        reply = act(superuser, verb, chain)
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
    with just_before(verb, lambda: chains.delete(rows[1])):
        reply = act_many(superuser, verb, rows, **answers(verb, *rows))
    assert messages_in(reply) == ["Nothing was changed: no longer exists."]
    assert {rows[0].id, rows[2].id} <= set(Chain.objects.values_list("pk", flat=True))
    assert rows[0].refresh().current_job.run_at == rows[0].current_job.run_at


@pytest.mark.parametrize("model", ["chain", "job"])
@pytest.mark.parametrize("verb", ["retry", "run_now", "reschedule"])
def test_a_chain_that_continues_meanwhile_is_not_changed_at_another_step(superuser, store, verb, model):
    """The page showed the id of the first job, which also stands for the chain."""
    chain = failed(store) if verb == "retry" else scheduled(store).refresh()

    def meanwhile():
        chains.retry(chain)
        go_on(chain, delay=3600)
        if verb == "retry":
            chains.cancel(chain)

    with just_before(verb, meanwhile):
        reply = act(superuser, verb, chain if model == "chain" else chain.current_job, model)
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


def test_the_page_for_a_deleted_chain_is_not_found(superuser, store):
    chain = ship.enqueue()
    chains.delete(chain)
    assert superuser.get(url("cancel", chain)).status_code == 404
    assert act(superuser, "cancel", chain).status_code == 404


@pytest.mark.usefixtures("record_site")
@pytest.mark.parametrize("verb", MOVES)
@pytest.mark.parametrize(("change", "reason"), [("hidden", "no longer exists"), ("precious", "not allowed")])
def test_permissions_are_checked_again_for_the_locked_record(superuser, monkeypatch, verb, change, reason):
    """The record changes after it was checked and before it is locked."""
    record, lock = put(Export, "errored", name="other"), QuerySet.select_for_update

    def late(self, *arguments, **options):
        Export.objects.filter(pk=record.pk).update(name=change)
        return lock(self, *arguments, **options)

    for name in ("retry", "requeue"):
        monkeypatch.setattr(ExportAdmin, f"has_{name}_permission", ExportAdmin.has_cancel_permission)
    monkeypatch.setattr(QuerySet, "select_for_update", late)
    assert messages_in(act(superuser, verb, record)) == [f"1 row skipped: {reason} ({record.pk})."]
    assert state_of(record) == "errored"


@pytest.mark.postgresql
@pytest.mark.usefixtures("record_site")
@pytest.mark.django_db(transaction=True)
def test_a_record_that_its_handler_has_locked_is_asked_to_stop(superuser, store):
    record = put(state="processing")
    locker = holding(lambda store: list(Upload.objects.select_for_update(no_key=True)))
    assert messages_in(act(superuser, "cancel", record)) == ["1 record cancelled or stopping."]
    table = record_types_of(Upload)[0].table("default")
    assert store.records.check(table, [(record.pk, record.lease_number)]).cancelled
    locker.result()
