"""The actions on records: the states they change, who may perform them, and their messages."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.db.models import QuerySet

from django_jobchains.records.operations import record_types_of
from django_jobchains.store import get_store
from tests.admin.actions.browsing import messages_in, text_of
from tests.admin.records.browsing import MOVES, STATES, VERBS, act, act_many, choose_action, put, state_of, url
from tests.admin.records.site import ExportAdmin
from tests.records.models import Export, Letter, Upload
from tests.support.connections import holding

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.records.site")]

every_verb = pytest.mark.parametrize("verb", VERBS)


@every_verb
@pytest.mark.parametrize("state", STATES)
def test_an_action_changes_records_of_its_states_and_skips_others_with_a_reason(superuser, verb, state):
    record = put(state=state)
    reply = act(superuser, verb, record)
    assert state_of(record) == MOVES[verb].get(state, state)
    [message] = messages_in(reply)
    assert (
        message.startswith("1 record ") if state in MOVES[verb] else message == f"1 row skipped: {state} ({record.pk})."
    )
    assert record.cancel is (verb == "cancel" and state in MOVES[verb])


@every_verb
def test_columns_with_other_names_and_text_keys(superuser, verb):
    record = put(Letter, "errored", code="a/b _%")
    assert superuser.get(url(f"record_{verb}", record)).status_code == 200
    act(superuser, verb, record)
    assert state_of(record) == MOVES[verb]["errored"]


@every_verb
def test_actions_require_the_change_permission(member, verb):
    record, client = put(state="errored"), member("view_upload")
    assert f'value="{verb}"' not in text_of(client.get(url("changelist")))
    assert f"record-{verb}/" not in text_of(client.get(url("change", record)))
    assert client.get(url(f"record_{verb}", record)).status_code == 403
    assert act(client, verb, record).status_code == 403
    assert choose_action(client, verb, [record]).status_code == 403
    assert act_many(client, verb, [record]).status_code == 403
    assert state_of(record) == "errored"


@every_verb
def test_the_change_permission_offers_the_actions(member, verb):
    record, client = put(state="errored"), member("change_upload")
    assert f'value="{verb}"' in text_of(client.get(url("changelist")))
    assert f"record-{verb}/" in text_of(client.get(url("change", record)))
    assert "skipped" not in text_of(choose_action(client, verb, [record]))
    assert act_many(client, verb, [record]).status_code == 302
    assert state_of(record) == MOVES[verb]["errored"]


def test_a_permission_that_depends_on_the_record_is_checked_for_each(superuser):
    precious, other = (put(Export, "queued", name=name) for name in ("precious", "other"))
    assert superuser.get(url("record_cancel", precious)).status_code == 403
    assert act(superuser, "cancel", precious).status_code == 403
    reply = act_many(superuser, "cancel", [precious, other], Export)
    assert (state_of(precious), state_of(other)) == ("queued", "cancelled")
    assert messages_in(reply) == [
        "1 record cancelled or stopping.",
        f"1 row skipped: not allowed ({precious.pk}).",
    ]


@pytest.mark.parametrize("name", ["excluded", "hidden"])
def test_hidden_records_are_treated_as_missing(superuser, name):
    record = put(Export, "queued", name=name)
    assert superuser.get(url("record_cancel", record)).status_code == 404
    assert act(superuser, "cancel", record).status_code == 404
    assert messages_in(act_many(superuser, "cancel", [record], Export)) == [
        f"1 row skipped: no longer exists ({record.pk})."
    ]
    assert state_of(record) == "queued"


@pytest.mark.parametrize("key", ["one", "1\0", "None", "", "1.5", str(10**30), "-1"])
@pytest.mark.parametrize("model", [Upload, Export, Letter])
def test_keys_that_no_record_has_are_rejected(superuser, model, key):
    put(model, "failed", **({"code": "a"} if model is Letter else {}))
    given = {"_selected_action": [key], "action": "retry", "index": "0"}
    for path in (url("record_retry_many", model=model), url("changelist", model=model)):
        reply = superuser.post(path, given)
        assert reply.status_code in (302, 400)
        assert reply.status_code == 400 or model is Letter or key == "-1"
        assert all(text.startswith(("Nothing was changed", "1 row skipped")) for text in messages_in(reply))
    page = url("changelist", model=model) + f"{quote(key)}/record-retry/"
    assert superuser.get(page).status_code in (302, 400, 404)
    assert superuser.post(page).status_code in (302, 400, 404)


@every_verb
@pytest.mark.parametrize(("change", "reason"), [("hidden", "no longer exists"), ("precious", "not allowed")])
def test_permissions_are_checked_again_for_the_locked_record(superuser, monkeypatch, verb, change, reason):
    """The record changes after it was checked and before it is locked."""
    record = put(Export, "errored", name="other")
    locked = QuerySet.select_for_update

    def late(self: Any, *arguments: Any, **options: Any) -> Any:
        Export.objects.filter(pk=record.pk).update(name=change)
        return locked(self, *arguments, **options)

    for name in ("retry", "requeue"):
        monkeypatch.setattr(ExportAdmin, f"has_{name}_permission", ExportAdmin.has_cancel_permission)
    monkeypatch.setattr(QuerySet, "select_for_update", late)
    assert messages_in(act(superuser, verb, record)) == [f"1 row skipped: {reason} ({record.pk})."]
    assert state_of(record) == "errored"


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_record_that_its_handler_has_locked_is_asked_to_stop(superuser):
    record = put(state="processing")
    locker = holding(lambda store: list(Upload.objects.select_for_update(no_key=True)))
    assert messages_in(act(superuser, "cancel", record)) == ["1 record cancelled or stopping."]
    table = record_types_of(Upload)[0].table("default")
    assert get_store().records.check(table, [(record.pk, record.lease_number)]).cancelled
    locker.result()


def test_an_action_on_several_records_takes_a_constant_number_of_statements(superuser, django_assert_max_num_queries):
    rows = [put(state="failed") for _ in range(20)]
    with django_assert_max_num_queries(16):
        act_many(superuser, "retry", rows)
    assert {state_of(row) for row in rows} == {"queued"}


def test_the_delay_of_a_requeue_counts_from_the_time_of_the_database(superuser, store):
    record = put(state="failed", num_failures=2)
    before = store.stats.time_ago(0)
    act(superuser, "requeue", record, delay_minutes="90")
    record.refresh_from_db()
    assert before <= record.process_after - timedelta(minutes=90) <= store.stats.time_ago(0)
    assert record.num_failures == 2


def test_an_invalid_time_shows_the_form_again(superuser):
    record = put(state="failed")
    reply = act(superuser, "requeue", record, delay_minutes="-1")
    assert "errorlist" in text_of(reply)
    assert state_of(record) == "failed"


def test_a_record_that_was_asked_to_stop_is_skipped(superuser):
    record = put(state="processing")
    act(superuser, "cancel", record)
    *_, message = messages_in(act(superuser, "cancel", record))
    assert message == f"1 row skipped: already asked to stop ({record.pk})."


@every_verb
def test_a_change_adds_a_log_entry_and_a_log_record(superuser, verb, caplog, django_capture_on_commit_callbacks):
    record, other = put(state="errored"), put(state="completed")
    with caplog.at_level(logging.INFO, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        act_many(superuser, verb, [record, other])
    [entry] = LogEntry.objects.all()
    messages = {"retry": "Retried.", "requeue": "Queued again.", "cancel": "Cancelled, or asked to stop."}
    assert (entry.object_id, entry.action_flag, entry.change_message) == (str(record.pk), CHANGE, messages[verb])
    [acted] = [record for record in caplog.records if getattr(record, "event", "") == "AdminActed"]
    assert acted.__dict__["jobchains"]["ids"] == [str(record.pk)]


def test_actions_of_a_subclass_are_kept(superuser):
    put()
    page = text_of(superuser.get(url("changelist")))
    assert all(f'value="{name}"' in page for name in ("touch", *VERBS, "delete_selected"))
    assert Upload.objects.exists()
