"""Pause, resume and limit queues on the dashboard."""

import logging

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.test import Client
from django.urls import reverse

from django_jobchains import queues
from django_jobchains.models import QueueState
from tests.admin.browsing import Page, change_queue, index, open_dashboard
from tests.support.jobs import create

pytestmark = pytest.mark.django_db

URL = "admin:django_jobchains_change_queue"
ODD_NAMES = ('a/b//c?d=e&f#g it\'s "quoted" <b>bold</b> größe → 東京 100 % ../../etc', " spaces ", "x" * 100)


def queue_settings():
    return {state.name: (state.paused_at is not None, state.slot_limit) for state in QueueState.objects.all()}


def form_of(client, queue, verb):
    """Return the form in a queue's row that has a button for the change."""
    [form] = [
        form
        for form in open_dashboard(client).section("queues").all("form")
        if form.all("input", name="queue")[0].attributes.get("value") == queue
        and form.all("button", name="verb", value=verb)
    ]
    return form


def press(client, form, verb, **typed):
    """Submit a form with its values and some others, and return the message of the next page."""
    fields = {field.attributes["name"]: field.attributes.get("value", "") for field in form.all("input")}
    reply = client.post(form.attributes["action"], {**fields, **typed, "verb": verb}, follow=True)
    assert reply.redirect_chain == [(index(), 302)]
    [message] = Page(reply).messages()
    return message


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_queue_is_paused_and_resumed_by_its_buttons(operator, store, name):
    create(store, 1, queue=name)
    message = press(operator, form_of(operator, name, "pause"), "pause")
    assert queue_settings() == {name: (True, None)}
    assert "was paused. Running jobs continue, and no other jobs are started." in message
    assert "was resumed." in press(operator, form_of(operator, name, "resume"), "resume")
    assert queue_settings() == {name: (False, None)}


def test_setting_and_removing_a_limit_keeps_the_pause(operator):
    queues.pause("mail")
    message = press(operator, form_of(operator, "mail", "limit"), "limit", slots="3")
    assert (message, queue_settings()) == ("Queue mail was limited to 3 jobs at once.", {"mail": (True, 3)})
    form = form_of(operator, "mail", "limit")
    assert form.all("input", name="slots")[0].attributes["value"] == "3"
    assert press(operator, form, "limit", slots="") == "The limit of queue mail was removed."
    assert queue_settings() == {"mail": (True, None)}


def test_another_queue_is_paused_by_its_name(operator):
    form = open_dashboard(operator).section("queues").all("form")[-1]
    press(operator, form, "pause", queue="not yet used")
    assert queue_settings() == {"not yet used": (True, None)}


def test_an_invalid_form_changes_no_queue(operator):
    wrong_slots = [("mail", "limit", slots) for slots in ("0", "-1", "many", "1.5", str(2**31))]
    wrong_names = [(name, "pause", "") for name in ("", "x" * 101, "line\nbreak", "nul\0")]
    for queue, verb, slots in (*wrong_slots, *wrong_names, ("mail", "delete", ""), ("mail", "", "")):
        [message] = Page(change_queue(operator, verb, queue, slots=slots)).messages()
        assert message.startswith("Nothing was changed."), (queue, verb, slots)
    assert (queue_settings(), LogEntry.objects.exists()) == ({}, False)


@pytest.mark.parametrize("permissions", [(), ("retry_job", "view_payload"), ("view_queuestate",)])
def test_changing_queues_requires_the_permission(staff, permissions):
    queues.set_limit("mail", 5)
    client = staff(*permissions)
    for verb in ("pause", "resume", "limit"):
        assert change_queue(client, verb, "mail", slots="1").status_code == 403
    assert (queue_settings(), LogEntry.objects.exists()) == ({"mail": (False, 5)}, False)


def test_changing_queues_requires_a_login_a_post_request_and_the_csrf_token(client, operator):
    assert "/login/" in client.post(reverse(URL), {"verb": "pause", "queue": "mail"})["Location"]
    assert operator.get(reverse(URL), {"verb": "pause", "queue": "mail"}).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert change_queue(strict, "pause", "mail").status_code == 403
    assert queue_settings() == {}
    token = open_dashboard(strict).root.all("input", name="csrfmiddlewaretoken")[0].attributes["value"]
    assert change_queue(strict, "pause", "mail", csrfmiddlewaretoken=token).status_code == 200
    assert queue_settings() == {"mail": (True, None)}


@pytest.mark.parametrize(
    ("verb", "slots", "message"),
    [
        ("pause", "", "Paused."),
        ("resume", "", "Resumed."),
        ("limit", "1", "Limited to 1 job at once."),
        ("limit", "4", "Limited to 4 jobs at once."),
        ("limit", "", "Limit removed."),
    ],
)
def test_each_change_of_a_queue_is_logged(operator, caplog, django_capture_on_commit_callbacks, verb, slots, message):
    caplog.set_level(logging.INFO, "django_jobchains")
    with django_capture_on_commit_callbacks(execute=True):
        change_queue(operator, verb, "mail", slots=slots)
    [entry] = LogEntry.objects.all()
    assert (entry.object_id, entry.object_repr, entry.change_message) == ("mail", "mail", message)
    assert entry.user == User.objects.get()
    assert entry.content_type == ContentType.objects.get_for_model(QueueState)
    [acted] = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "AdminActed"]
    assert f"verb={verb} queue, queuestate=mail" in acted
