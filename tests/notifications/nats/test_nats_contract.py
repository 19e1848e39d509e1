"""NATS keeps the contract of notifiers, with JetStream and without."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_jobchains.notifications import Notifier
from django_jobchains.notifications.nats import NatsNotifier
from tests.notifications.contract import NotifierContract
from tests.notifications.nats.server import NatsServer, core_server, nats_server

__all__ = ("core_server", "nats_server")


class OverNats(NotifierContract):
    server: NatsServer

    @pytest.fixture(autouse=True)
    def _patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A budget that comes late is not known. The contract wants to know it, also on a busy machine."""
        monkeypatch.setattr("django_jobchains.notifications.nats_thread.TAKE_SECONDS", 15)

    @pytest.fixture(autouse=True)
    def _closes_notifiers(self, _closes_listeners: None) -> Iterator[None]:
        self.made: list[NatsNotifier] = []
        yield
        for listener in self.listeners:
            listener.close()
        for notifier in self.made:
            notifier.close()

    def make(self) -> Notifier:
        self.made.append(NatsNotifier("default", servers=self.server.url))
        return self.made[-1]

    @contextmanager
    def interrupt(self) -> Iterator[None]:
        self.server.kill()
        yield
        self.server.start()


class TestWithJetStream(OverNats):
    has_budgets = True

    @pytest.fixture(autouse=True)
    def _server(self, nats_server: NatsServer) -> None:
        self.server = nats_server


class TestWithoutJetStream(OverNats):
    @pytest.fixture(autouse=True)
    def _server(self, core_server: NatsServer) -> None:
        self.server = core_server
