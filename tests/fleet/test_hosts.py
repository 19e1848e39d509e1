"""Hosts that are cut off, come back or vanish, that have a slow network or a wrong clock, while they work."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_jobchains.models import Job
from tests.chaos.oracle import assert_ends_well
from tests.fleet.hosts import Host, network
from tests.fleet.oracle import assert_nothing_is_lost_or_doubled, unfinished
from tests.fleet.web import DEAD_NETWORK
from tests.shop.models import Effect
from tests.support.servers import Unavailable
from tests.support.servers.cluster import ALIAS, Server, binaries, cluster, start_process
from tests.support.servers.faketime import clock
from tests.support.servers.programs import or_skip
from tests.support.waiting import until
from tests.support.worker_app import jobs

__all__ = ("cluster", "start_process")

LEASE_SECONDS = 10
SLOTS, THREADS, PAUSE = 4, 2, 1.0
#: Options of web processes. With the last one, the server notices that they have vanished, and ends their transactions.
#: Workers set all of this themselves.
WEB_OPTIONS = {
    **DEAD_NETWORK,
    "connect_timeout": 2,
    "options": "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=8s",
}
#: By how many seconds the clock of each host is wrong.
CLOCKS = (0, 90, -90, 0)
#: How long the transactions take in which jobs are completed that are under way when a host is cut off.
TRANSACTION_SECONDS = 2.0
#: The reports state how long it takes. A busy machine may need much longer.
PATIENCE_SECONDS = 300


@pytest.fixture(scope="module")
def hosts():
    with or_skip(), network() as made:
        for _ in CLOCKS:
            made.add_host()
        yield made


@pytest.fixture(scope="module")
def server(hosts):
    """A server on this machine, which the hosts reach through their cables."""
    with or_skip():
        if (programs := binaries()) is None:
            raise Unavailable("there are no programs of a PostgreSQL server")
    server = Server(programs, hosts.address)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@dataclass
class Member:
    """A host with a worker and a web process."""

    host: Host
    clock: int
    worker: Any
    web: Any

    def under_way(self):
        """Enqueue jobs until this worker runs some of them, and return their ids."""
        ids = []

        def running():
            nonlocal ids
            if not Job.objects.using(ALIAS).filter(pk__in=ids).incomplete().exists():
                ids = enqueue_urgent_orders(SLOTS * len(CLOCKS))
            held = Job.objects.using(ALIAS).filter(pk__in=ids, leased_by__contains=f":{self.worker.pid}:")
            return list(held.values_list("id", flat=True))

        return until(running, PATIENCE_SECONDS, lambda: self.worker.output)

    def until_it_works(self, since):
        """Wait until both processes have completed something after this time; return after how many seconds."""
        own = Job.objects.using(ALIAS).filter(completed_by__contains=f":{self.worker.pid}:", finished_at__gt=since)

        def commits():
            times = [line.at - self.clock - since.timestamp() for line in self.web.acknowledged()]
            return [seconds for seconds in times if seconds > 0]

        until(own.exists, PATIENCE_SECONDS, lambda: self.worker.output)
        until(commits, PATIENCE_SECONDS, lambda: self.web.output)
        return seconds_between(since, own.earliest("finished_at").finished_at), round(min(commits()), 1)


def enqueue_urgent_orders(count):
    """Enqueue orders that run before others, however many wait on a busy machine, and return their ids."""
    with transaction.atomic(ALIAS):
        ids = [jobs.slow_write.enqueue(TRANSACTION_SECONDS, priority=1, using=ALIAS).id for _ in range(count)]
        Effect.objects.using(ALIAS).bulk_create(Effect(job_id=job_id, label="ordered write") for job_id in ids)
    return ids


def seconds_between(first, second):
    return round((second - first).total_seconds(), 1)


def until_done(ids, members):
    """Wait until these jobs are completed, by any worker. Return when the last one was."""
    ended = Job.objects.using(ALIAS).filter(pk__in=ids, status="completed")
    until(lambda: ended.count() == len(ids), PATIENCE_SECONDS, lambda: [m.worker.output[-2_000:] for m in members])
    return ended.latest("finished_at").finished_at


def cut(host):
    host.cut()


def cut_briefly(host):
    host.cut()
    time.sleep(3)
    host.mend()


def cut_what_it_sends(host):
    host.cut_outgoing()


def cut_what_it_receives(host):
    host.cut_incoming()


def slow_down(host):
    """Let a round trip take 200 ms, and lose a twentieth of the packets."""
    host.slow_down(0.1, 0.05)
    time.sleep(20)
    host.mend()


def vanish(host):
    host.cut()
    host.kill()


#: What happens, and to which host. A cut lasts until the other hosts have done the work that was under way there.
ONE_CUT = ((cut, 1),)
ALL = (
    (cut_briefly, 0),
    (cut, 1),
    (cut_what_it_sends, 2),
    (cut_what_it_receives, 3),
    (slow_down, 1),
    (cut, 2),
    (vanish, 0),
)


@pytest.fixture
def start_member(cluster, start_process, start_web):
    def start(host, clock_error):
        environment = {**cluster.environment, **(clock(clock_error) if clock_error else {})}
        worker_options = {"LEASE_SECONDS": str(LEASE_SECONDS), "SCHEDULES": "1"}
        web_options = {"JOBCHAINS_TEST_DATABASE_OPTIONS": json.dumps(WEB_OPTIONS)}
        worker = start_process("--slots", str(SLOTS), within=host.within, **worker_options, **environment)
        web = start_web("inf", THREADS, PAUSE, host.within, **web_options, **environment)
        return Member(host, clock_error, worker, web)

    return start


@pytest.mark.parametrize(
    ("count", "disturbances"),
    [pytest.param(2, ONE_CUT, id="one-cut", marks=pytest.mark.short), pytest.param(len(CLOCKS), ALL, id="all")],
)
def test_nothing_is_lost_or_doubled_and_no_worker_has_to_be_restarted(count, disturbances, hosts, start_member, report):
    figures = []
    start = timezone.now()
    members = [start_member(*each) for each in zip(hosts.hosts[:count], CLOCKS[:count], strict=True)]
    for member in members:
        member.until_it_works(start)
    for disturb, number in disturbances:
        member = members[number]
        under_way = member.under_way()
        began = timezone.now()
        disturb(member.host)
        ended = timezone.now()
        row = {"disturbance": disturb.__name__, "clock": member.clock}
        row["jobs_done_after"] = seconds_between(began, until_done(under_way, members))
        if disturb is not vanish:
            if disturb not in (cut_briefly, slow_down):
                member.host.mend()
                ended = timezone.now()
            assert member.worker.is_alive, member.worker.output
            row["jobs_again_after"], row["requests_again_after"] = member.until_it_works(ended)
        figures.append(row)
    left = [member for member in members if member.worker.is_alive]
    assert len(left) == len(members) - sum(disturb is vanish for disturb, _ in disturbances)
    for member in left:
        member.web.stop()
    until(lambda: unfinished(ALIAS) == {}, PATIENCE_SECONDS, lambda: (unfinished(ALIAS), left[0].worker.output))
    assert_ends_well(*(member.worker for member in left))
    acknowledged = [line for member in members for line in member.web.acknowledged()]
    crashes = Job.objects.using(ALIAS).filter(crashes__gt=0).count()
    failed = sum(member.web.errors for member in members)
    report(acknowledged=len(acknowledged), failed_requests=failed, jobs_taken_over=crashes, disturbances=figures)
    assert_nothing_is_lost_or_doubled(acknowledged, ALIAS)
