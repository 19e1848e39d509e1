"""The log entries of changes, their transaction and language, and the history pages that show them."""

import logging

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, router
from django.utils import translation
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.actions.action import log_change
from django_jobchains.admin.detail import views
from django_jobchains.models import QueueState
from tests.admin.browsing import act, messages_in, text_of, url
from tests.support.chains import everything, failed, mail, scheduled, ship


@pytest.fixture
def chain(store):
    return scheduled(store).refresh()


@pytest.fixture
def admin_request(superuser):
    return superuser.get("/admin/").wsgi_request


def test_a_cascade_adds_a_log_entry_for_each_deleted_chain(superuser):
    blocker = mail.enqueue()
    chain = ship.enqueue(blockers=[blocker])
    act(superuser, "delete", chain, cascade="on")
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(chain.pk), str(blocker.pk)}


def test_an_error_in_the_log_undoes_the_change(superuser, chain, monkeypatch):
    """The log entry and the change are in one transaction."""
    before = everything()

    def refuse(*arguments, **options):
        raise IntegrityError

    monkeypatch.setattr(LogEntry.objects, "log_actions", refuse)
    with pytest.raises(IntegrityError):
        act(superuser, "cancel", chain)
    assert everything() == before


def test_a_log_in_another_database_is_written_after_the_commit(
    superuser, chain, monkeypatch, django_capture_on_commit_callbacks
):
    monkeypatch.setattr(router, "db_for_write", lambda model: "elsewhere" if model is LogEntry else "default")
    with django_capture_on_commit_callbacks() as callbacks:
        act(superuser, "cancel", chain)
    assert not LogEntry.objects.exists()
    monkeypatch.undo()
    for callback in callbacks:
        callback()
    assert LogEntry.objects.count() == 1


def test_the_history_of_a_chain_includes_its_jobs_and_that_of_a_job_its_chain(superuser, store):
    chain, other = failed(store), failed(store)
    act(superuser, "retry", chain.current_job, "job")
    act(superuser, "reschedule", chain)
    for row, model in ((chain, "chain"), (chain.current_job, "job")):
        shown = text_of(superuser.get(url("history", row, model)))
        assert "Retried." in shown
        assert "Rescheduled by 90 min." in shown
    for row, model in ((other, "chain"), (other.current_job, "job")):
        assert "Retried." not in text_of(superuser.get(url("history", row, model)))


def test_the_history_is_paginated(superuser, chain, admin_request):
    for number in range(views.ENTRIES_ON_PAGE + 1):
        log_change(admin_request, [(chain, chain.current_job)[number % 2]], f"entry {number}.", verb="test")
    first, second = (text_of(superuser.get(url("history", chain) + query)) for query in ("", "?p=2"))
    assert "entry 0." in first
    assert "entry 100." not in first
    assert "entry 100." in second


def test_the_history_requires_the_view_permission(client, chain, superuser):
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get(url("history", chain)).status_code == 403
    assert superuser.get("/admin/django_jobchains/chain/nothing/history/").status_code == 302


@pytest.mark.parametrize(("of_site", "of_reader", "text"), [("en", "de", "Delete"), ("de", "en", "Löschen")])
def test_the_log_is_in_the_language_of_the_site(chain, admin_request, settings, of_site, of_reader, text):
    settings.LANGUAGE_CODE = of_site
    with translation.override(of_reader):
        log_change(admin_request, [chain], _("Delete"), verb="delete")
    assert LogEntry.objects.get().change_message == text


def test_a_log_record_is_one_line(admin_request, caplog, django_capture_on_commit_callbacks):
    row = QueueState(name="slow\nINFO forged\x1b[31m")
    with caplog.at_level(logging.INFO, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        log_change(admin_request, [row], "Paused.", verb="pause")
    [record] = caplog.records
    assert record.getMessage().isprintable()


def test_payloads_are_not_logged(superuser, chain, caplog, django_capture_on_commit_callbacks):
    with caplog.at_level(logging.DEBUG, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        reply = act(superuser, "complete", chain, payload='{"secret": "canary-77"}')
    assert "canary-77" not in caplog.text
    assert "canary-77" not in "".join(messages_in(reply))
    assert "canary-77" not in LogEntry.objects.get().change_message
