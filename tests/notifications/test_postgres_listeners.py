"""PostgreSQL listeners test themselves: one that receives nothing logs it and is not alive."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.notifications import get_notifier, postgres
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.testing.contracts import ReceivedHints
from tests.support.databases import database
from tests.support.waiting import stays, until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def notifier(settings, monkeypatch):
    """A notifier that has not passed the self-test yet."""
    monkeypatch.setattr(postgres, "SELF_TEST_SECONDS", 30)
    monkeypatch.setattr(postgres, "TICK_SECONDS", 0.05)
    settings.JOBCHAINS = {}
    return get_notifier("default")


def test_self_test_succeeds_once_per_notifier(notifier, caplog):
    for _ in range(2):
        received = ReceivedHints()
        listener = notifier.listen(received)
        try:
            until(lambda received=received: received.hints == [*RESYNC_HINTS])
            assert notifier.is_proven
            assert listener.is_alive
        finally:
            listener.close()
        notifier.notify = None  # a second self-test would fail
    assert not caplog.text


def test_listener_that_receives_nothing_logs_a_remedy_and_is_not_alive(notifier, caplog, monkeypatch):
    monkeypatch.setattr(postgres, "SELF_TEST_SECONDS", 0.3)
    monkeypatch.setattr(notifier, "notify", lambda payloads: None)
    listener = notifier.listen(ReceivedHints())
    try:
        until(lambda: "do not arrive" in caplog.text)
        assert "'listen_using': 'direct'" in caplog.text
        assert not listener.is_alive
        assert stays(lambda: caplog.text.count("do not arrive") == 1, 1.0), "the warning is throttled"
    finally:
        listener.close()


def test_failed_self_test_does_not_prevent_listening(notifier, monkeypatch):
    def notify(payloads):
        raise ConnectionError("too many clients")

    monkeypatch.setattr(notifier, "notify", notify)
    received = ReceivedHints()
    listener = notifier.listen(received)
    try:
        until(lambda: received.hints == [*RESYNC_HINTS])
        assert not notifier.is_proven
    finally:
        listener.close()


def test_listen_using_selects_the_database(settings, django_db_blocker):
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "direct"}}}
    with database("direct", {"HOST": "nowhere.invalid"}, django_db_blocker):
        assert postgres._connection_parameters(get_notifier("default").listen_using)["host"] == "nowhere.invalid"


def test_listen_using_must_be_an_alias(settings):
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "direkt"}}}
    with pytest.raises(ImproperlyConfigured, match=r"no database 'direkt'\. Known: default"):
        get_notifier("default")
