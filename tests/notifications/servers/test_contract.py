"""The contract of notifiers for Redis, a cluster, and NATS with and without JetStream."""

from contextlib import contextmanager

import pytest

from django_jobchains.notifications import base, redis
from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.testing.contracts import NotifierContract


class ServerContract(NotifierContract):
    has_budgets = True

    @contextmanager
    def interrupt(self):
        self.server.kill()
        yield
        self.server.start()


class TestRedis(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, use_redis, monkeypatch):
        monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
        monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.4)
        self.server = redis_server
        use_redis(redis_server.url)

    def make(self):
        return redis.RedisNotifier("default", timeout_seconds=15)


class TestNats(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, nats_server, monkeypatch):
        """Budgets that arrive late count as unknown, but the contract needs them on a busy machine too."""
        monkeypatch.setattr("django_jobchains.notifications.nats.thread.TAKE_SECONDS", 15)
        monkeypatch.setattr("django_jobchains.notifications.nats.budgets.ANSWER_SECONDS", 15)
        self.server = nats_server

    def make(self):
        return NatsNotifier("default", servers=self.server.url)


class TestNatsWithoutJetStream(TestNats):
    has_budgets = False

    @pytest.fixture(autouse=True)
    def _server(self, core_server):
        self.server = core_server
