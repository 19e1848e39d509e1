"""The same rules for each action on chains, jobs and records: permissions, selections, log entries and limits."""

import logging
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.test import Client

from django_jobchains import chains
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.admin.actions import confirmed, row_actions
from django_jobchains.admin.record_admin import RECORD_ACTIONS
from django_jobchains.db.ids import new_id
from tests.admin.actions.conftest import Parcel, pack
from tests.admin.browsing import (
    PERMISSIONS,
    act,
    act_many,
    answers,
    choose_action,
    messages_in,
    text_of,
    ticked,
    url,
    verb_url,
)
from tests.admin.records.site import MOVES, UploadAdmin, put
from tests.records.models import Export, Letter, Upload
from tests.support import chains as support
from tests.support.chain_shapes import statements
from tests.support.chains import ship
from tests.support.jobs import claim, failed_try

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("record_site")]


@dataclass(frozen=True)
class Case:
    """An action, and the model of its rows."""

    verb: str
    model: Any

    def __str__(self):
        return f"{self.verb} {self.model if isinstance(self.model, str) else 'record'}"

    @property
    def permission(self):
        return "change_upload" if self.model is Upload else PERMISSIONS[self.verb]

    @property
    def class_(self):
        known = RECORD_ACTIONS if self.model is Upload else row_actions.CHAIN_ACTIONS
        return next(type(each) for each in known if each.name == self.verb)

    def rows(self, store, count=1):
        """Create rows that the action can change."""
        if self.model is Upload:
            return [put(state="errored") for _ in range(count)]
        made = chains.enqueue_many([ship.item(delay=3600 * (self.verb != "retry")) for _ in range(count)])
        if self.verb == "retry":
            store.attempts.fail([failed_try(job) for job in claim(store)])
        return [chain.refresh().current_job if self.model == "job" else chain.refresh() for chain in made]


CASES = [
    *(Case(verb, "chain") for verb in PERMISSIONS),
    *(Case(verb, "job") for verb in PERMISSIONS if verb != "delete"),
    *(Case(verb, Upload) for verb in MOVES),
]
ALL = {*PERMISSIONS.values(), "enqueue_job", "view_payload", "change_upload"}
every_action = pytest.mark.parametrize("case", CASES, ids=str)
one_per_model = pytest.mark.parametrize("case", [CASES[0], CASES[6], CASES[11]], ids=str)


def everything():
    return [support.everything(), list(Upload.objects.order_by("pk").values())]


@every_action
@pytest.mark.parametrize("is_allowed", [True, False], ids=["its permission", "all others"])
def test_an_action_requires_exactly_its_permission(staff, store, case, is_allowed):
    client = staff(*({case.permission} if is_allowed else ALL - {case.permission}))
    row, *rows = case.rows(store, 3)
    before = everything()
    in_list, page = text_of(client.get(url("changelist", model=case.model))), verb_url(case.verb, row, case.model)
    assert (f'<option value="{case.verb}">' in in_list) is is_allowed
    # A job without other steps is shown on the page of its chain, which has its id.
    button = verb_url(case.verb, row, "chain" if case.model == "job" else case.model)
    assert (f'href="{button}' in text_of(client.get(url("change", row, case.model), follow=True))) is is_allowed
    assert client.get(page).status_code == (200 if is_allowed else 403)
    assert choose_action(client, case.verb, rows, case.model).status_code == (200 if is_allowed else 403)
    assert everything() == before, "a confirmation page must not change anything"
    for post in (
        lambda: act(client, case.verb, row, case.model),
        lambda: act_many(client, case.verb, rows, case.model, **answers(case.verb, *rows)),
    ):
        before = everything()
        assert post().status_code == (302 if is_allowed else 403)
        assert (everything() != before) is is_allowed


@every_action
def test_what_any_request_requires(client, staff, superuser, store, case):
    """A login, the permission to view the rows, a POST request, and its CSRF token."""
    rows, strict = case.rows(store), Client(enforce_csrf_checks=True)
    strict.cookies = superuser.cookies
    before = everything()
    assert "/login/" in client.get(verb_url(case.verb, rows[0], case.model))["Location"]
    assert "/login/" in act(client, case.verb, rows[0], case.model)["Location"]
    if case.model is not Upload:  # the permission to change records implies the one to view them
        blind = staff(case.permission, view=False)
        assert blind.get(verb_url(case.verb, rows[0], case.model)).status_code == 403
        assert act(blind, case.verb, rows[0], case.model).status_code == 403
    assert superuser.get(verb_url(case.verb, None, case.model)).status_code == 405
    assert act(strict, case.verb, rows[0], case.model).status_code == 403
    assert choose_action(strict, case.verb, rows, case.model).status_code == 403
    assert act_many(strict, case.verb, rows, case.model, **answers(case.verb, *rows)).status_code == 403
    assert everything() == before


@every_action
def test_a_subclass_decides_about_each_row(superuser, store, case, monkeypatch):
    for admin_class, name in ((ChainAdmin, "may"), (JobAdmin, "may"), (UploadAdmin, "has_change_permission")):
        monkeypatch.setattr(admin_class, name, _unless_it_is_of_a_row(getattr(admin_class, name)))
    [row] = case.rows(store)
    before = everything()
    assert superuser.get(verb_url(case.verb, row, case.model)).status_code == 403
    assert act(superuser, case.verb, row, case.model).status_code == 403
    reply = act_many(superuser, case.verb, [row], case.model, **answers(case.verb, row))
    assert messages_in(reply) == [f"1 row skipped: not allowed ({row.pk})."]
    assert everything() == before


def _unless_it_is_of_a_row(allows):
    """Refuse rows of the type ``shop.ship``, and all records."""

    def decide(self, request, *args):
        is_refused = args and hasattr(args[-1], "pk") and getattr(args[-1], "type_name", ship.name) == ship.name
        return not is_refused and allows(self, request, *args)

    return decide


def test_a_cascade_is_refused_if_the_user_may_not_delete_all(superuser, monkeypatch):
    monkeypatch.setattr(ChainAdmin, "may", _unless_it_is_of_a_row(ChainAdmin.may))
    chain = pack.enqueue(Parcel(1), blockers=[ship.enqueue()])
    before = everything()
    reply = act(superuser, "delete", chain, cascade="on")
    assert messages_in(reply) == ["Nothing was changed: the chains waited for chains that you may not delete."]
    assert everything() == before
    assert messages_in(act(superuser, "delete", chain))[-1] == "1 chain deleted."


# Selections


@every_action
def test_only_rows_selected_one_by_one_are_changed(superuser, store, case):
    row, other = case.rows(store, 2)
    before = everything()
    for across in ("1", "true", "", ["1", "0", "1"]):
        reply = choose_action(superuser, case.verb, [row], case.model, select_across=across)
        assert messages_in(reply)[-1].startswith("Nothing was changed: select 1 to ")
    assert choose_action(superuser, case.verb, [], case.model).status_code == 302
    assert act_many(superuser, case.verb, [], case.model).status_code == 400
    assert everything() == before
    page = text_of(choose_action(superuser, case.verb, [row], case.model, select_across=["1", "0"]))
    assert f'value="{row.pk}"' in page
    assert f'value="{other.pk}"' not in page
    forged = {"select_across": "1", "action": case.verb}
    act_many(superuser, case.verb, [row], case.model, **answers(case.verb, row), **forged)
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(row.pk)]


@every_action
def test_more_rows_than_allowed_are_refused(superuser, store, monkeypatch, case):
    monkeypatch.setattr(case.class_, "max_rows", 2)
    rows = case.rows(store, 3)
    before = everything()
    reply = choose_action(superuser, case.verb, rows, case.model)
    assert (reply.status_code, messages_in(reply)) == (302, ["Nothing was changed: select 1 to 2 rows."])
    assert act_many(superuser, case.verb, rows, case.model, **answers(case.verb, *rows)).status_code == 400
    assert everything() == before


JUNK = ["x", "", "../1", "' OR 1=1 --", "0" * 33, "\0", "0" * 31 + "\0", "é" * 32, "9" * 100_000, "None", "1.5"]


@pytest.mark.parametrize("case", [CASES[0], CASES[6]], ids=str)
def test_malformed_ids_are_a_bad_request(superuser, store, case):
    [row] = case.rows(store)
    before = everything()
    for junk in JUNK:
        forged = ticked([row, junk])
        assert choose_action(superuser, case.verb, [], case.model, **forged).status_code == 400, junk
        for more in ({}, {"ask": ""}):
            reply = act_many(superuser, case.verb, [], case.model, **{**forged, **answers(case.verb, row), **more})
            assert reply.status_code == 400, junk
    assert everything() == before


@pytest.mark.parametrize("key", ["one", "1\0", "None", "", "1.5", str(10**30), "-1"])
@pytest.mark.parametrize("model", [Upload, Export, Letter])
def test_keys_that_no_record_has_are_rejected(superuser, model, key):
    """The keys are numbers, UUIDs, or texts."""
    put(model, "failed", **({"code": "a"} if model is Letter else {}))
    replies = act_many(superuser, "retry", [key], model), choose_action(superuser, "retry", [key], model)
    for reply in replies:
        assert reply.status_code in (302, 400)
        assert reply.status_code == 400 or model is Letter or key == "-1"
        assert all(text.startswith(("Nothing was changed", "1 row skipped")) for text in messages_in(reply))
    page = f"{url('changelist', model=model)}{quote(key)}/record-retry/"
    assert {superuser.get(page).status_code, superuser.post(page).status_code} <= {302, 400, 404}


@one_per_model
def test_an_unknown_action_does_nothing(superuser, store, case):
    rows = case.rows(store)
    before = everything()
    for forged in ({"action": "nothing"}, {"action": "__init__"}, {"action": ["cancel", "nothing"]}, {"index": "99"}):
        reply = choose_action(superuser, case.verb, rows, case.model, **forged)
        assert reply.status_code in (200, 302, 400)
    assert everything() == before


@every_action
def test_deleted_rows_are_reported_and_others_are_changed(superuser, store, case):
    [row], gone = case.rows(store), 10**6 if case.model is Upload else new_id()
    before = everything()
    reply = act_many(superuser, case.verb, [row, gone], case.model, **answers(case.verb, row))
    assert f"1 row skipped: no longer exists ({gone})." in messages_in(reply)
    assert everything() != before


def test_a_message_names_some_of_the_skipped_rows(superuser):
    gone = [new_id() for _ in range(8)]
    [message] = messages_in(act_many(superuser, "cancel", gone))
    assert message.startswith("8 rows skipped: no longer exists (")
    assert sum(str(id_) in message for id_ in gone) == 5


def test_the_page_lists_the_first_rows_and_submits_all(superuser, store, monkeypatch):
    monkeypatch.setattr(confirmed, "MAX_LISTED_ROWS", 2)
    rows = CASES[4].rows(store, 5)
    page = text_of(choose_action(superuser, "cancel", rows))
    assert sum(f'href="{url("change", row)}"' in page for row in rows) == 2
    assert "and 3 more" in page
    assert all(f'name="_selected_action" value="{row.pk}"' in page for row in rows)


# Log entries and statements

MESSAGES = {
    "complete": "Completed.",
    "retry": "Retried.",
    "run_now": "Made due now.",
    "reschedule": "Rescheduled by 90 min.",
    "requeue": "Queued again.",
    "cancel": "Cancelled, or asked to stop.",
    "delete": "Deleted.",
}


@every_action
def test_each_changed_row_has_a_log_entry_and_is_logged(
    superuser, store, case, caplog, django_capture_on_commit_callbacks
):
    rows, user = case.rows(store, 2), User.objects.get()
    skipped = put(state="completed") if case.model is Upload else new_id()
    with caplog.at_level(logging.INFO, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        act_many(superuser, case.verb, [*rows, skipped], case.model, **answers(case.verb, *rows))
    flag = DELETION if case.verb == "delete" else CHANGE
    content = ContentType.objects.get_for_model(type(rows[0]))
    found = LogEntry.objects.values_list("user", "object_id", "object_repr", "action_flag", "change_message")
    assert set(found) == {(user.pk, str(row.pk), str(row), flag, MESSAGES[case.verb]) for row in rows}
    assert {entry.content_type for entry in LogEntry.objects.all()} == {content}
    [acted] = [record for record in caplog.records if getattr(record, "event", "") == "AdminActed"]
    ids = [str(row.pk) for row in rows]
    assert acted.jobchains == {"user": str(user.pk), "verb": case.verb, "model": content.model, "ids": ids}
    assert acted.getMessage() == f"Admin acted: user={user.pk}, verb={case.verb}, {content.model}={', '.join(ids)}"


@every_action
def test_the_number_of_statements_does_not_depend_on_the_number_of_rows(superuser, store, case):
    """Except that each completion takes several."""
    counts, numbers = [], (2, 12)
    for number in numbers:
        rows = case.rows(store, number)
        page = statements(lambda rows=rows: choose_action(superuser, case.verb, rows, case.model))
        action = statements(
            lambda rows=rows: act_many(superuser, case.verb, rows, case.model, **answers(case.verb, *rows))
        )
        counts.append((len(page), len(action)))
    (few_page, few_action), (many_page, many_action) = counts
    assert many_page <= few_page
    assert many_action <= few_action + (20 * (numbers[1] - numbers[0]) if case.verb == "complete" else 0)
