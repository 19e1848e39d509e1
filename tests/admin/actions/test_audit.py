"""Each change has a log entry with its user, and a log record."""

import logging
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, router
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.actions import audit
from django_jobchains.admin.detail import views
from django_jobchains.models import Chain, QueueState
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, messages_in, text_of, url
from tests.support.chains import everything, failed, mail, scheduled, ship

MESSAGES = {
    "complete": "Completed.",
    "retry": "Retried.",
    "run_now": "Made due now.",
    "reschedule": "Rescheduled by 90 min.",
    "cancel": "Cancelled, or asked to stop.",
    "delete": "Deleted.",
}


def a_chain_for(verb: str, store: Store) -> Chain:
    return failed(store) if verb == "retry" else scheduled(store).refresh()


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_a_change_adds_a_log_entry_and_a_log_record(superuser, store, verb, caplog, django_capture_on_commit_callbacks):
    chain, user = a_chain_for(verb, store), User.objects.get()
    with caplog.at_level(logging.INFO, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        act(superuser, verb, chain)
    [entry] = LogEntry.objects.all()
    assert (entry.user, entry.object_id, entry.object_repr) == (user, str(chain.pk), str(chain))
    assert (entry.action_flag, entry.change_message) == (DELETION if verb == "delete" else CHANGE, MESSAGES[verb])
    assert entry.content_type == ContentType.objects.get_for_model(Chain)
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "AdminActed"]
    assert record.getMessage() == f"Admin acted: user={user.pk}, verb={verb}, chain={chain.pk}"
    expected = {"user": str(user.pk), "verb": verb, "model": "chain", "ids": [str(chain.pk)]}
    assert record.__dict__["jobchains"] == expected


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_each_changed_row_has_a_log_entry(superuser, store, verb):
    rows = [a_chain_for(verb, store) for _ in range(3)]
    act_many(superuser, verb, rows, **answers(verb, *rows))
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(row.pk) for row in rows}


def test_a_cascade_adds_a_log_entry_for_each_deleted_chain(superuser, store):
    blocker = mail.enqueue()
    chain = ship.enqueue(blockers=[blocker])
    act(superuser, "delete", chain, cascade="on")
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(chain.pk), str(blocker.pk)}


def test_log_entries_of_jobs_refer_to_jobs(superuser, store):
    job = scheduled(store).refresh().current_job
    superuser.post(url("run_now", job, "job"))
    [entry] = LogEntry.objects.all()
    assert entry.content_type is not None
    assert (entry.content_type.model, entry.object_id) == ("job", str(job.pk))


def test_an_error_in_the_log_undoes_the_change(superuser, store, monkeypatch):
    """The log entry and the change are in one transaction."""
    chain = scheduled(store).refresh()
    before = everything()

    def refuse(*arguments: Any, **options: Any) -> None:
        raise IntegrityError

    monkeypatch.setattr(LogEntry.objects, "log_actions", refuse)
    with pytest.raises(IntegrityError):
        act(superuser, "cancel", chain)
    assert everything() == before


def test_a_log_in_another_database_is_written_after_the_commit(
    superuser, store, monkeypatch, django_capture_on_commit_callbacks
):
    chain = scheduled(store).refresh()
    monkeypatch.setattr(router, "db_for_write", lambda model: "elsewhere" if model is LogEntry else "default")
    with django_capture_on_commit_callbacks() as callbacks:
        act(superuser, "cancel", chain)
    assert not LogEntry.objects.exists()
    monkeypatch.undo()
    for callback in callbacks:
        callback()
    assert LogEntry.objects.count() == 1


def test_the_history_pages_show_the_change(superuser, store):
    chain = failed(store)
    act(superuser, "retry", chain)
    assert "Retried." in text_of(superuser.get(url("history", chain)))
    superuser.post(url("reschedule", chain.current_job, "job"), {"delay_minutes": "90"})
    assert "Rescheduled by 90 min." in text_of(superuser.get(url("history", chain.current_job, "job")))


def test_the_history_of_a_chain_includes_its_jobs(superuser, store):
    chain, other = failed(store), failed(store)
    superuser.post(url("retry", chain.current_job, "job"))
    superuser.post(url("run_now", scheduled(store).refresh().current_job, "job"))
    assert "Retried." in text_of(superuser.get(url("history", chain)))
    assert "Retried." not in text_of(superuser.get(url("history", other)))
    assert "Made due now." not in text_of(superuser.get(url("history", chain)))


def test_the_history_of_a_job_includes_its_chain(superuser, store):
    chain, other = failed(store), failed(store)
    act(superuser, "retry", chain)
    assert "Retried." in text_of(superuser.get(url("history", chain.current_job, "job")))
    assert "Retried." not in text_of(superuser.get(url("history", other.current_job, "job")))


def test_the_history_is_paginated(superuser, store, admin_request):
    chain = failed(store)
    for number in range(views.ENTRIES_ON_PAGE + 1):
        audit.log(admin_request, [(chain, chain.current_job)[number % 2]], f"entry {number}.", verb="test")
    first, second = (
        text_of(superuser.get(url("history", chain))),
        text_of(superuser.get(url("history", chain) + "?p=2")),
    )
    assert "entry 0." in first
    assert "entry 100." not in first
    assert "entry 100." in second


def test_the_history_requires_the_view_permission(client, store, superuser):
    chain = failed(store)
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get(url("history", chain)).status_code == 403
    assert superuser.get("/admin/django_jobchains/chain/nothing/history/").status_code == 302


@pytest.mark.parametrize(("of_site", "of_reader", "text"), [("en", "de", "Delete"), ("de", "en", "Löschen")])
def test_the_log_is_in_the_language_of_the_site(superuser, store, settings, of_site, of_reader, text):
    request: Any = superuser.get("/admin/").wsgi_request
    settings.LANGUAGE_CODE = of_site
    with translation.override(of_reader):
        audit.log(request, [scheduled(store).refresh()], _("Delete"), verb="delete")
    assert LogEntry.objects.get().change_message == text


def test_a_log_record_is_one_line(superuser, caplog, django_capture_on_commit_callbacks):
    request: Any = superuser.get("/admin/").wsgi_request
    row = QueueState(name="slow\nINFO forged\x1b[31m")
    with caplog.at_level(logging.INFO, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        audit.log(request, [row], "Paused.", verb="pause")
    [record] = caplog.records
    assert record.getMessage().isprintable()


def test_payloads_are_not_logged(superuser, store, caplog, django_capture_on_commit_callbacks):
    chain = scheduled(store).refresh()
    with caplog.at_level(logging.DEBUG, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        reply = act(superuser, "complete", chain, payload='{"secret": "canary-77"}')
    assert "canary-77" not in caplog.text
    assert "canary-77" not in "".join(messages_in(reply))
    assert "canary-77" not in LogEntry.objects.get().change_message
