"""A fleet on a PostgreSQL cluster whose primary is exchanged, killed, and cut off from the network.

``JOBCHAINS_FLEET_FAILOVERS`` and ``JOBCHAINS_FLEET_CHAINS`` make it longer.
"""

import json
import math
import os
import time
from contextlib import suppress

import pytest
from django.db import DatabaseError, InterfaceError

from tests.chaos.oracle import assert_ends_well
from tests.fleet.hosts import network
from tests.fleet.oracle import assert_nothing_is_lost_or_doubled, is_kept, unfinished
from tests.fleet.web import DEAD_NETWORK
from tests.shop.models import Effect
from tests.support.servers.cluster import ALIAS, cluster, reconnect, start_process
from tests.support.servers.patroni import Patroni
from tests.support.servers.programs import or_skip
from tests.support.waiting import until

__all__ = ("cluster", "start_process")

FAILOVERS = int(os.environ.get("JOBCHAINS_FLEET_FAILOVERS", "3"))
CHAINS = int(os.environ.get("JOBCHAINS_FLEET_CHAINS", "1500"))
FEW_CHAINS = 150
pytestmark = pytest.mark.timeout(300 + 120 * FAILOVERS)

SLOTS, THREADS = 8, 4
#: How long the requests last for each failover, at least.
LOAD_SECONDS = 15
#: How far the primary is ahead of the other servers when it dies, without synchronous replication.
LAG_SECONDS = 2
#: How soon the fleet must work again when there is a new primary.
RESUME_SECONDS = 15


@pytest.fixture(scope="module")
def server(request):
    """The cluster, in the place of a single server. The parameter: its options."""
    with or_skip(), network() as hosts:
        started = Patroni(hosts, **request.param)
        try:
            started.start()
            yield started
        finally:
            started.remove()


def switch_over(server, primary):
    """Let the primary hand over. All of its sessions end."""
    server.switch_over()


def kill_database(server, primary):
    """Kill the first process of the primary's server, so that the others end. Patroni, which still runs, notices."""
    primary.kill("bin/postgres")


def kill(server, primary):
    """Kill the host of the primary, and start it again when there is another primary."""
    primary.kill()
    until(lambda: server.primary(other_than=primary), 60, server.log)
    server.start_host(primary)


def kill_ahead(server, primary):
    """Kill the host of the primary when the other servers have received nothing for a while."""
    primary.suspend("walsender")
    time.sleep(LAG_SECONDS)
    kill(server, primary)


def cut_off(server, primary):
    """Cut the primary off from the network. It continues to run, and is reachable again when there is another one."""
    primary.cut()
    until(lambda: server.primary(other_than=primary), 60, server.log)
    primary.mend()


DISTURBANCES = (switch_over, kill, cut_off)


class Failover:
    """A failover, and when it began and ended, as Unix times."""

    def __init__(self, server, disturb):
        self.name = disturb.__name__
        before = server.primary()
        self.began = time.time()
        disturb(server, before)
        until(lambda: server.primary(other_than=before), 60, server.log)
        self.ended = time.time()

    def figures(self, effects, commits):
        """Return seconds: until there was another primary, and from then to the first completed job and request."""

        def since(times):
            return round(min(when for when in times if when > self.ended) - self.ended, 1)

        return {
            "failover": self.name,
            "new_primary_after": round(self.ended - self.began, 1),
            "jobs_after": since(effects),
            "requests_after": since(commits),
        }


def until_acknowledged(web, count):
    until(lambda: sum(len(process.acknowledged()) for process in web) >= count, 300, lambda: web[0].output)


def left():
    """Return how much work is unfinished, or None during a failover."""
    with suppress(DatabaseError, InterfaceError):
        return unfinished(ALIAS)
    reconnect()
    return None


@pytest.fixture
def survive(cluster, start_process, start_web):
    """Let a fleet work during these disturbances until it has finished. Return what was acknowledged, and figures."""

    def survive(disturbances, chains=CHAINS, workers=4):
        pause = 2 * THREADS * LOAD_SECONDS * len(disturbances) / chains
        web = [start_web(chains // 2, THREADS, pause, **environment) for environment in environments_of_web(cluster)]
        workers = [
            start_process("--slots", str(SLOTS), LEASE_SECONDS="10", SCHEDULES="2", **environment)
            for environment in workers // 2 * (cluster.environment, cluster.environment_with_hosts)
        ]
        failovers = []
        for number, disturb in enumerate(disturbances, 1):
            until_acknowledged(web, chains * number // (len(disturbances) + 2))
            cluster.until_whole()
            failovers.append(Failover(cluster, disturb))
        for process in web:
            process.wait(300)
        until(lambda: left() == {}, 120, lambda: (left(), [worker.output[-2_000:] for worker in workers]))
        assert_ends_well(*workers)
        acknowledged = [line for process in web for line in process.acknowledged()]
        assert len(acknowledged) >= chains
        times = Effect.objects.using(ALIAS).exclude(label__startswith="ordered").values_list("created_at", flat=True)
        effects, commits = [when.timestamp() for when in times], [line.at for line in acknowledged]
        figures = {
            "acknowledged": len(acknowledged),
            "effects": len(effects),
            "failed_requests": sum(process.errors for process in web),
            "failovers": [failover.figures(effects, commits) for failover in failovers],
        }
        return acknowledged, figures

    return survive


def environments_of_web(cluster):
    by_hosts = cluster.environment_with_hosts
    options = json.loads(by_hosts["JOBCHAINS_TEST_DATABASE_OPTIONS"])
    yield cluster.environment
    yield {**by_hosts, "JOBCHAINS_TEST_DATABASE_OPTIONS": json.dumps({**options, **DEAD_NETWORK})}


@pytest.mark.short
@pytest.mark.parametrize("server", [{"synchronous": True}], indirect=True, ids=["synchronous"])
def test_work_continues_on_another_primary(survive, report):
    acknowledged, figures = survive([kill_database], FEW_CHAINS, workers=2)
    report(**figures)
    assert_nothing_is_lost_or_doubled(acknowledged, ALIAS)


@pytest.mark.parametrize("server", [{"synchronous": True}], indirect=True, ids=["synchronous"])
def test_nothing_is_lost_or_doubled_and_no_worker_has_to_be_restarted(survive, report):
    acknowledged, figures = survive([DISTURBANCES[number % len(DISTURBANCES)] for number in range(FAILOVERS)])
    report(**figures)
    assert_nothing_is_lost_or_doubled(acknowledged, ALIAS)
    assert max(failover["jobs_after"] for failover in figures["failovers"]) < RESUME_SECONDS


@pytest.mark.parametrize("server", [{"synchronous": False}], indirect=True, ids=["asynchronous"])
def test_without_synchronous_replication_whole_transactions_are_lost_at_most(survive, report):
    """An order and its chain are lost together. What is there is done once."""
    acknowledged, figures = survive([kill_ahead] * math.ceil(FAILOVERS / 3))
    kept = [line for line in acknowledged if is_kept(line, ALIAS)]
    report(**figures, lost=len(acknowledged) - len(kept))
    assert_nothing_is_lost_or_doubled(kept, ALIAS)
