"""Redis and NATS with one interface, for the tests that both have to pass."""

import json

import pytest

from django_jobchains.notifications import base, get_notifier, redis
from django_jobchains.notifications.nats import NatsNotifier, budgets, thread
from tests.notifications.servers import processes
from tests.support.servers.nats import core_server, nats_server, start_server, started_servers
from tests.support.servers.redis import (
    RedisServer,
    _shared_redis,
    cache_of,
    notifier_setting,
    redis_server,
    running,
    use_redis,
)

__all__ = ("_shared_redis", "core_server", "nats_server", "redis_server", "start_server", "use_redis")


@pytest.fixture
def short_intervals(monkeypatch):
    """Let a listener connect again soon after an outage."""
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.4)


@pytest.fixture
def quick_probes(short_intervals, monkeypatch):
    """Let a listener detect soon that the server does not respond, and a sender that it does again."""
    monkeypatch.setattr(redis, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(redis, "MAX_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(thread, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(thread, "ANSWER_SECONDS", 0.3)


@pytest.fixture
def patient(monkeypatch):
    """Wait longer for budgets of NATS, because those that arrive late count as unknown. Undo it to test an outage."""
    with monkeypatch.context() as patch:
        patch.setattr(thread, "TAKE_SECONDS", 15)
        patch.setattr(budgets, "ANSWER_SECONDS", 15)
        yield patch


class RedisBroker:
    #: What is logged if the server cannot be used.
    failures = ("Listening for wake-ups failed", "Wake-ups were not sent", "every idle worker queries")
    #: The names of the threads that listen.
    threads = {"listener-default"}

    def __init__(self, server, settings):
        self.server, self._settings = server, settings
        self.use()

    def use(self, url=None):
        """Configure the project to use the server, and return its notifier."""
        self._settings.CACHES = cache_of(url or self.server.url)
        self._settings.JOBCHAINS = {"NOTIFIER": notifier_setting()}
        return get_notifier("default")

    def make(self, using="default", **options):
        """Create a notifier that waits long enough on a busy machine."""
        return redis.RedisNotifier(using, timeout_seconds=15, **options)

    def publish(self, kind, *texts):
        with self.server.admin as admin, admin.pipeline(transaction=False) as pipeline:
            for text in texts:
                pipeline.publish(f"django_jobchains.{kind}", text)
            pipeline.execute()

    def subscribed(self, notifier):
        with self.server.admin as admin:
            return {name.decode().partition(".")[2] for name in admin.pubsub_channels()}

    def use_wrong_password(self, folder):
        """Yield the notifier of each way to use a wrong password, or an address without a server."""
        server = RedisServer(folder, password="right")
        with running(server):
            for address in (f"127.0.0.1:{server.port}/0", "127.0.0.1:1/0", "nowhere.invalid:6379/0"):
                yield self.use(f"redis://:s3cret@{address}")
            yield self.use("redis://127.0.0.1:1/0?password=s3cret")

    def worker(self, **jobchains):
        """Return the arguments of a worker process."""
        return {
            "jobchains": {**jobchains, "NOTIFIER": notifier_setting()},
            "DJANGO_SETTINGS_MODULE": "tests.notifications.servers.worker_settings",
            "JOBCHAINS_TEST_CACHES": json.dumps(cache_of(self.server.url)),
        }


class NatsBroker:
    failures = ("NATS cannot be used",)
    threads = {"nats-default", "nats-default-hints"}

    def __init__(self, server, settings):
        self.server, self._settings = server, settings
        self.use()

    def use(self, url=None, **options):
        self._settings.JOBCHAINS = processes.jobchains(url or self.server.url, **options)
        return get_notifier("default")

    def make(self, using="default", **options):
        return NatsNotifier(using, self.server.url, **options)

    def publish(self, kind, *texts):
        self.server.publish(f"django_jobchains.{kind}", *texts)

    def subscribed(self, notifier):
        return set(notifier._subscribers._listener._subscribed) if notifier._subscribers._listener else set()

    def use_wrong_password(self, folder):
        folder.mkdir()
        with started_servers(folder) as start:
            server = start(configuration="authorization { user: shop, password: right }")
            yield self.use(f"nats://shop:s3cret@127.0.0.1:{server.port}")
            yield self.use(server.url, user="shop", password="s3cret")

    def worker(self, **jobchains):
        return {"jobchains": {**processes.jobchains(self.server.url), **jobchains}}


@pytest.fixture(params=["redis", "nats"])
def broker(request, settings, tmp_path):
    """A server that the project's notifier uses."""
    if request.param == "redis":
        yield RedisBroker(request.getfixturevalue("redis_server"), settings)
        get_notifier("default").close()
    else:
        with started_servers(tmp_path) as start:
            yield NatsBroker(start(), settings)
            get_notifier("default").close()
