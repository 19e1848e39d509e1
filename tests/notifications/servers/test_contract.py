"""The contract of notifiers for Redis, and for NATS with and without JetStream."""

from contextlib import contextmanager

import pytest

from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.notifications.redis import RedisNotifier
from django_jobchains.testing.contracts import NotifierContract


class ServerContract(NotifierContract):
    has_budgets = True

    @contextmanager
    def interrupt(self):
        self.server.kill()
        yield
        self.server.start()


@pytest.mark.usefixtures("short_intervals")
class TestRedis(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server, use_redis):
        self.server = redis_server
        use_redis(redis_server.url)

    def make(self):
        return RedisNotifier("default", timeout_seconds=15)


@pytest.mark.usefixtures("patient")
class TestNats(ServerContract):
    @pytest.fixture(autouse=True)
    def _server(self, nats_server):
        self.server = nats_server

    def make(self):
        return NatsNotifier("default", servers=self.server.url)


class TestNatsWithoutJetStream(TestNats):
    has_budgets = False

    @pytest.fixture(autouse=True)
    def _server(self, core_server):
        self.server = core_server
