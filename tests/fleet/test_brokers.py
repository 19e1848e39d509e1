"""Brokers in clusters that fail over while a worker receives wake-ups from them. Polling carries the work meanwhile."""

import json
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager

import pytest
from django.db import transaction
from django.test import override_settings

from tests.chaos.oracle import assert_ends_well
from tests.fleet.oracle import assert_nothing_is_lost_or_doubled, unfinished
from tests.fleet.web import order
from tests.notifications.servers import processes
from tests.shop.models import Effect
from tests.support.fixtures import start_process
from tests.support.servers import free_port
from tests.support.servers.nats import NatsServer
from tests.support.servers.redis import (
    FACTORY,
    SLOTS,
    RedisServer,
    cache_of,
    has_state,
    node,
    notifier_setting,
    running,
)
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
#: Primaries of the Redis Cluster, each with one replica.
PAIRS = 3
#: How long the web process waits between two requests, so that the worker is idle most of the time.
WEB_PAUSE = 0.5


class Woken:
    """A worker that is woken by a broker, and how soon, while a web process enqueues jobs of all kinds."""

    def __init__(self, process, web):
        self.process = process
        self._web = web
        until(web.acknowledged, 90, lambda: web.output)
        self.until_woken()

    def until_woken(self):
        """Enqueue jobs until some in succession start at once. Return how many seconds passed before the first one."""
        since = first = time.monotonic()
        in_succession = 0
        while in_succession < IN_SUCCESSION:
            assert time.monotonic() - since < 90, self.process.output
            time.sleep(0.2)  # the worker is idle again
            enqueued = time.monotonic()
            with transaction.atomic():
                chain = jobs.write.enqueue(0.0)
                order("write", chain.id)
            until_completed(chain, 60, lambda: self.process.output)
            is_woken = time.monotonic() - enqueued < AT_ONCE_SECONDS
            in_succession = in_succession + 1 if is_woken else 0
            first = enqueued if in_succession == 1 else first
        return round(first - since, 1)

    def end(self):
        """Check the work, and return how many requests there were, and how long the slowest job waited, in seconds."""
        self._web.stop()
        assert not self._web.errors, self._web.output
        until(lambda: unfinished("default") == {}, 60, lambda: self.process.output)
        acknowledged = self._web.acknowledged()
        assert_nothing_is_lost_or_doubled(acknowledged, "default")
        assert_ends_well(self.process)
        assert "Traceback" not in self.process.output
        return {"requests": len(acknowledged), "longest_wait": longest_wait()}


def longest_wait():
    """Return the longest time from an order to the first effect of its job."""
    by_job = defaultdict(list)
    for job_id, when in Effect.objects.order_by("created_at").values_list("job_id", "created_at"):
        by_job[job_id].append(when)
    waits = [effects[0] - ordered for ordered, *effects in by_job.values() if effects]
    return round(max(waits).total_seconds(), 1)


@pytest.fixture
def start_woken(start_process, start_web):
    def start(options, **environment):
        """Start a worker and a web process with these options of the package."""
        jobchains = {**options, "POLL_SECONDS": POLL_SECONDS}
        environment["RECORDS_POLL_SECONDS"] = str(POLL_SECONDS)
        worker = start_process("--slots", "4", jobchains=jobchains, **environment).until_ready()
        web = start_web("inf", 1, WEB_PAUSE, JOBCHAINS_TEST_OPTIONS=json.dumps(options), **environment)
        return Woken(worker, web)

    return start


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
def test_a_worker_is_woken_again_after_each_server_of_a_nats_cluster_was_killed(tmp_path, start_woken, report):
    with nats_cluster(tmp_path) as servers:
        options = processes.jobchains([server.url for server in servers])
        with override_settings(JOBCHAINS=options):
            woken = start_woken(options)
            seconds = []
            for server in servers:
                server.kill()
                seconds.append(woken.until_woken())
                server.start()
                time.sleep(1)  # clients learn of its routes
            report(woken_again_after=seconds, **woken.end())


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


def test_a_worker_is_woken_again_after_redis_sentinel_has_promoted_the_replica(tmp_path, start_woken, report):
    with watched_redis(tmp_path) as (primary, replica, sentinels):
        caches = cache_of(
            "redis://jobs/0",
            CLIENT_CLASS="django_redis.client.SentinelClient",
            CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
            SENTINELS=sentinels,
        )
        options = {"NOTIFIER": notifier_setting()}
        with override_settings(CACHES=caches, JOBCHAINS=options):
            woken = start_woken(options, **environment_of(caches))
            since = time.monotonic()
            primary.kill()
            with replica.admin as admin:
                until(lambda: admin.info("replication")["role"] == "master", 60)
            promoted = round(time.monotonic() - since, 1)
            report(promoted_after=promoted, woken_again_after=woken.until_woken(), **woken.end())


@contextmanager
def redis_cluster(folder):
    """Yield pairs of a primary and its replica, of a cluster."""
    pairs = [
        [node(folder / f"{name}-{number}", "--cluster-node-timeout", "1000") for name in ("primary", "replica")]
        for number in range(PAIRS)
    ]
    nodes = [node for pair in pairs for node in pair]
    with running(*nodes), ExitStack() as clients:
        admins = {node: clients.enter_context(node.admin) for node in nodes}
        for number, (primary, _) in enumerate(pairs):
            own = range(SLOTS * number // PAIRS, SLOTS * (number + 1) // PAIRS)
            admins[primary].execute_command("CLUSTER", "ADDSLOTS", *own)
        for other in nodes[1:]:
            admins[nodes[0]].execute_command("CLUSTER", "MEET", "127.0.0.1", str(other.port))
        until(lambda: all(has_state(admin, f"known_nodes:{len(nodes)}") for admin in admins.values()), 60)
        for primary, replica in pairs:
            name = admins[primary].execute_command("CLUSTER", "MYID")
            until(lambda: knows(admins[replica], name), 60)  # noqa: B023
            admins[replica].execute_command("CLUSTER", "REPLICATE", name)
        for _, replica in pairs:
            until(lambda: admins[replica].info("replication").get("master_link_status") == "up", 60)  # noqa: B023
        until(lambda: all(has_state(admin, "cluster_state:ok") for admin in admins.values()), 60)
        yield pairs


def knows(admin, name):
    return name in admin.execute_command("CLUSTER", "NODES", NEVER_DECODE=True)


def test_a_worker_is_woken_again_after_each_primary_of_a_redis_cluster_was_killed(tmp_path, start_woken, report):
    with redis_cluster(tmp_path) as pairs:
        caches = cache_of(pairs[0][0].url, CONNECTION_FACTORY=FACTORY)
        options = {"NOTIFIER": notifier_setting()}
        with override_settings(CACHES=caches, JOBCHAINS=options):
            woken = start_woken(options, **environment_of(caches))
            promoted, seconds = [], []
            for primary, replica in reversed(pairs):
                since = time.monotonic()
                primary.kill()
                with replica.admin as admin:
                    until(lambda: admin.info("replication")["role"] == "master", 60)
                promoted.append(round(time.monotonic() - since, 1))
                seconds.append(woken.until_woken())
                primary.start()
                with primary.admin as admin:
                    until(lambda: admin.info("replication").get("master_link_status") == "up", 60)
            report(promoted_after=promoted, woken_again_after=seconds, **woken.end())


def environment_of(caches):
    """Return the environment of a process that uses these caches."""
    return {
        "JOBCHAINS_TEST_CACHES": json.dumps(caches),
        "DJANGO_SETTINGS_MODULE": "tests.notifications.servers.worker_settings",
    }
