"""Brokers in clusters that fail over while a worker receives wake-ups from them. Polling carries the work meanwhile."""

import json
import time
from contextlib import contextmanager

import pytest
from django.test import override_settings

from tests.chaos.oracle import assert_ends_well
from tests.notifications.servers import processes
from tests.support.fixtures import start_process
from tests.support.invariants import assert_invariants
from tests.support.servers import free_port
from tests.support.servers.nats import NatsServer
from tests.support.servers.redis import RedisServer, cache_of, notifier_setting, running
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ("start_process",)

#: Without wake-ups, a job waits for a few seconds. With them, it starts at once.
POLL_SECONDS = 4
AT_ONCE_SECONDS = 0.8
#: More jobs than can start at once by chance, because the worker polls just then.
IN_SUCCESSION = 5
SENTINELS = 3


class Woken:
    """A worker that is woken by a broker, and how soon."""

    def __init__(self, process):
        self.process = process
        self.until_woken()

    def until_woken(self):
        """Enqueue jobs until some in succession start at once. Return how many seconds passed before the first one."""
        since = first = time.monotonic()
        in_succession = 0
        while in_succession < IN_SUCCESSION:
            assert time.monotonic() - since < 90, self.process.output
            time.sleep(0.2)  # the worker is idle again
            enqueued = time.monotonic()
            until_completed(jobs.write.enqueue(0.0), 60, lambda: self.process.output)
            is_woken = time.monotonic() - enqueued < AT_ONCE_SECONDS
            in_succession = in_succession + 1 if is_woken else 0
            first = enqueued if in_succession == 1 else first
        return round(first - since, 1)

    def end(self):
        assert_invariants()
        assert_ends_well(self.process)
        assert "Traceback" not in self.process.output


@contextmanager
def nats_cluster(folder):
    """Yield three servers that route messages to each other."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    servers = []
    try:
        for number, port in enumerate(ports):
            cluster = f"cluster {{ name: fleet, listen: 127.0.0.1:{port}, routes: [{routes}] }}"
            own = folder / f"nats-{number}"
            servers.append(NatsServer(own, configuration=f"server_name: n{number}\n{cluster}\n"))
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.mark.short
def test_a_worker_is_woken_again_after_each_server_of_a_nats_cluster_was_killed(tmp_path, start_process, report):
    with nats_cluster(tmp_path) as servers:
        options = processes.jobchains([server.url for server in servers])
        with override_settings(JOBCHAINS=options):
            woken = Woken(
                start_process(
                    "--type", "chaos.write", jobchains={**options, "POLL_SECONDS": POLL_SECONDS}
                ).until_ready()
            )
            seconds = []
            for server in servers:
                server.kill()
                seconds.append(woken.until_woken())
                server.start()
                time.sleep(1)  # clients learn of its routes
            report(woken_again_after=seconds)
            woken.end()


@contextmanager
def watched_redis(folder):
    """Yield a primary, its replica, and the ports of sentinels that watch them."""
    primary = RedisServer(folder / "primary")
    replica = RedisServer(folder / "replica", "--replicaof", "127.0.0.1", str(primary.port))
    sentinels = []
    for number in range(SENTINELS):
        own = folder / f"sentinel-{number}"
        own.mkdir()
        configuration = own / "sentinel.conf"
        configuration.write_text(
            f"sentinel monitor jobs 127.0.0.1 {primary.port} {SENTINELS // 2 + 1}\n"
            "sentinel down-after-milliseconds jobs 1000\nsentinel failover-timeout jobs 5000\n"
        )
        sentinels.append(RedisServer(own, mode=(str(configuration), "--sentinel")))
    with running(primary, replica, *sentinels):
        with replica.admin as admin, sentinels[0].admin as watcher:
            until(lambda: admin.info("replication").get("master_link_status") == "up")
            until(
                lambda: watcher.sentinel_slaves("jobs") and len(watcher.sentinel_sentinels("jobs")) == SENTINELS - 1, 60
            )
        yield primary, replica, [("127.0.0.1", sentinel.port) for sentinel in sentinels]


def test_a_worker_is_woken_again_after_redis_sentinel_has_promoted_the_replica(tmp_path, start_process, report):
    with watched_redis(tmp_path) as (primary, replica, sentinels):
        caches = cache_of(
            "redis://jobs/0",
            CLIENT_CLASS="django_redis.client.SentinelClient",
            CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
            SENTINELS=sentinels,
        )
        environment = {
            "JOBCHAINS_TEST_CACHES": json.dumps(caches),
            "DJANGO_SETTINGS_MODULE": "tests.notifications.servers.worker_settings",
        }
        options = {"NOTIFIER": notifier_setting()}
        with override_settings(CACHES=caches, JOBCHAINS=options):
            jobchains = {**options, "POLL_SECONDS": POLL_SECONDS}
            woken = Woken(start_process("--type", "chaos.write", jobchains=jobchains, **environment).until_ready())
            since = time.monotonic()
            primary.kill()
            with replica.admin as admin:
                until(lambda: admin.info("replication")["role"] == "master", 60)
            promoted = round(time.monotonic() - since, 1)
            report(promoted_after=promoted, woken_again_after=woken.until_woken())
            woken.end()
