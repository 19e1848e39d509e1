"""Pause, resume and limit queues on the dashboard."""

import logging
from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse

from django_jobchains import queues
from django_jobchains.models import QueueState
from tests.admin.dashboard.browsing import Page, change, index, open_dashboard
from tests.support.jobs import create

pytestmark = pytest.mark.django_db

Staff = Callable[..., Client]
URL = "admin:django_jobchains_change_queue"
ODD_NAMES = ('a/b//c?d=e&f#g it\'s "quoted" <b>bold</b> größe → 東京 100 % ../../etc', " spaces ", "x" * 100)


def queue_settings():
    return {state.name: (state.paused_at is not None, state.slot_limit) for state in QueueState.objects.all()}


def messages_of(reply):
    return Page(reply.content.decode()).messages()


def form_of(page, queue, verb):
    """Return the form in a queue's row that has a button for the change."""
    [form] = [
        form
        for form in page.section("queues").all("form")
        if form.all("input", name="queue")[0].attributes.get("value") == queue
        and form.all("button", name="verb", value=verb)
    ]
    return form


def press(client, form, verb, **typed):
    fields = {field.attributes["name"]: field.attributes.get("value", "") for field in form.all("input")}
    reply = client.post(form.attributes["action"], {**fields, **typed, "verb": verb}, follow=True)
    assert reply.redirect_chain == [(index(), 302)]
    return messages_of(reply)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_queue_is_paused_and_resumed_by_its_buttons(operator, store, name):
    create(store, 1, queue=name)
    [message] = press(operator, form_of(open_dashboard(operator), name, "pause"), "pause")
    assert queue_settings() == {name: (True, None)}
    assert "was paused. Running jobs continue, and no other jobs are started." in message
    [message] = press(operator, form_of(open_dashboard(operator), name, "resume"), "resume")
    assert queue_settings() == {name: (False, None)}
    assert "was resumed." in message


def test_setting_and_removing_a_limit_keeps_the_pause(operator):
    queues.pause("mail")
    assert press(operator, form_of(open_dashboard(operator), "mail", "limit"), "limit", slots="3") == [
        "Queue mail was limited to 3 slots per worker."
    ]
    assert queue_settings() == {"mail": (True, 3)}
    form = form_of(open_dashboard(operator), "mail", "limit")
    assert form.all("input", name="slots")[0].attributes["value"] == "3"
    assert press(operator, form, "limit", slots="") == ["The limit of queue mail was removed."]
    assert queue_settings() == {"mail": (True, None)}


def test_another_queue_is_paused_by_its_name(operator):
    form = open_dashboard(operator).section("queues").all("form")[-1]
    press(operator, form, "pause", queue="not yet used")
    assert queue_settings() == {"not yet used": (True, None)}


def test_an_invalid_form_changes_no_queue(operator):
    for queue, verb, slots in (
        ("mail", "limit", "0"),
        ("mail", "limit", "-1"),
        ("mail", "limit", "many"),
        ("mail", "limit", "1.5"),
        ("mail", "limit", str(2**31)),
        ("mail", "delete", ""),
        ("mail", "", ""),
        ("", "pause", ""),
        ("x" * 101, "pause", ""),
        ("line\nbreak", "pause", ""),
        ("nul\0", "pause", ""),
    ):
        [message] = messages_of(change(operator, verb, queue, slots=slots))
        assert message.startswith("Nothing was changed."), (queue, verb, slots)
    assert queue_settings() == {}
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("permissions", [(), ("retry_job", "view_payload"), ("view_queuestate",)])
def test_changing_queues_requires_the_permission(staff, permissions):
    queues.set_limit("mail", 5)
    client = staff(*permissions)
    for verb in ("pause", "resume", "limit"):
        assert change(client, verb, "mail", slots="1").status_code == 403
    assert queue_settings() == {"mail": (False, 5)}
    assert not LogEntry.objects.exists()


def test_changing_queues_requires_the_dashboard_permission(staff, client):
    assert change(staff("change_queuestate", view=False), "pause", "mail").status_code == 403
    reply = client.post(reverse(URL), {"verb": "pause", "queue": "mail"})
    assert "/login/" in reply["Location"]
    assert queue_settings() == {}


def test_a_get_changes_no_queue(operator):
    for verb in ("pause", "resume", "limit"):
        assert operator.get(reverse(URL), {"verb": verb, "queue": "mail", "slots": "1"}).status_code == 405
    assert queue_settings() == {}


def test_changing_queues_requires_the_csrf_token(operator):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert change(strict, "pause", "mail").status_code == 403
    assert queue_settings() == {}
    token = open_dashboard(strict).root.all("input", name="csrfmiddlewaretoken")[0].attributes["value"]
    assert change(strict, "pause", "mail", csrfmiddlewaretoken=token).status_code == 200
    assert queue_settings() == {"mail": (True, None)}


@pytest.mark.parametrize(
    ("verb", "slots", "message", "verb_logged"),
    [
        ("pause", "", "Paused.", "pause queue"),
        ("resume", "", "Resumed.", "resume queue"),
        ("limit", "1", "Limited to 1 slot per worker.", "limit queue"),
        ("limit", "4", "Limited to 4 slots per worker.", "limit queue"),
        ("limit", "", "Limit removed.", "limit queue"),
    ],
)
def test_each_change_of_a_queue_is_logged(
    operator, caplog, django_capture_on_commit_callbacks, verb, slots, message, verb_logged
):
    caplog.set_level(logging.INFO, "django_jobchains")
    with django_capture_on_commit_callbacks(execute=True):
        change(operator, verb, "mail", slots=slots)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr, entry.change_message) == ("mail", "mail", message)
    assert entry.user == User.objects.get()
    assert entry.content_type == ContentType.objects.get_for_model(QueueState)
    assert any(verb_logged in record.getMessage() and "mail" in record.getMessage() for record in caplog.records)
