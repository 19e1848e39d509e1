"""The contract of notifiers for NATS, with and without JetStream."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_jobchains.notifications import Notifier
from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.testing.contracts import NotifierContract
from tests.support.servers.nats import NatsServer, core_server, nats_server

__all__ = ("core_server", "nats_server")


class NatsContract(NotifierContract):
    server: NatsServer

    @pytest.fixture(autouse=True)
    def _long_timeout(self, monkeypatch):
        """Budgets that arrive late count as unknown, but the contract needs them on a busy machine too."""
        monkeypatch.setattr("django_jobchains.notifications.nats.thread.TAKE_SECONDS", 15)
        monkeypatch.setattr("django_jobchains.notifications.nats.budgets.ANSWER_SECONDS", 15)

    @pytest.fixture(autouse=True)
    def _closes_notifiers(self, _closes_listeners):
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


class TestWithJetStream(NatsContract):
    has_budgets = True

    @pytest.fixture(autouse=True)
    def _server(self, nats_server):
        self.server = nats_server


class TestWithoutJetStream(NatsContract):
    @pytest.fixture(autouse=True)
    def _server(self, core_server):
        self.server = core_server
