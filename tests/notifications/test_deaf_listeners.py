"""A listener that subscribes and is not told says so, and does not go on as if it heard."""

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.notifications import get_notifier, postgres
from django_jobchains.notifications.hints import LOOK
from tests.notifications.contract import Heard
from tests.worker.waiting import stays, until

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def notifier(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that has proved nothing yet."""
    monkeypatch.setattr(postgres, "PROOF_SECONDS", 0.3)
    monkeypatch.setattr(postgres, "TICK_SECONDS", 0.05)
    settings.JOBCHAINS = {}
    return get_notifier("default")


def test_what_a_listener_says_itself_reaches_it_once_for_all(notifier: Any, caplog: Any) -> None:
    for _ in range(2):
        heard = Heard()
        listener = notifier.listen(heard)
        try:
            until(lambda heard=heard: heard.hints == [*LOOK])  # type: ignore[misc]
            assert notifier.is_proven
            assert listener.is_alive
        finally:
            listener.close()
        notifier.notify = None  # not needed again
    assert not caplog.text


def test_a_deaf_listener_says_what_to_do_and_is_not_alive(
    notifier: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "notify", lambda payloads: None)
    listener = notifier.listen(Heard())
    try:
        until(lambda: "does not arrive" in caplog.text)
        assert "'listen_using': 'direct'" in caplog.text
        assert not listener.is_alive
        assert stays(lambda: caplog.text.count("does not arrive") == 1, 1.0), "once in a while is enough"
    finally:
        listener.close()


def test_a_proof_that_cannot_be_given_is_no_reason_not_to_listen(
    notifier: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(payloads: Any) -> None:
        raise ConnectionError("too many clients")

    monkeypatch.setattr(notifier, "notify", fails)
    heard = Heard()
    listener = notifier.listen(heard)
    try:
        until(lambda: heard.hints == [*LOOK])
        assert not notifier.is_proven
    finally:
        listener.close()


def test_listen_using_names_the_database_that_is_listened_on(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings, "direct", {**connections.settings["default"], "HOST": "nowhere.invalid"})
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "direct"}}}
    assert postgres._parameters(get_notifier("default").listen_using)["host"] == "nowhere.invalid"  # type: ignore[attr-defined]


def test_listen_using_must_be_an_alias(settings: Any) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "direkt"}}}
    with pytest.raises(ImproperlyConfigured, match=r"no database 'direkt'\. Known: default"):
        get_notifier("default")
