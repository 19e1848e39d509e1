"""A fleet with 200 client connections on 20 sessions of the server, through PgBouncer in transaction mode."""

import json
import time

import pytest
from django.db import connections
from psycopg import capabilities

from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import assert_ends_well
from tests.fleet.oracle import assert_nothing_is_lost_or_doubled, unfinished
from tests.shop.models import Effect
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server, start_process
from tests.support.servers.pgbouncer import Pooler, command, command_that_prepares
from tests.support.servers.programs import or_skip
from tests.support.waiting import until

__all__ = ("cluster", "server", "start_process")

SESSIONS = 20
WORKERS, SLOTS = 2, 62
WEB, THREADS = 2, 35
REQUESTS = 1_500
LISTEN_DIRECTLY = {"NOTIFIER": {"OPTIONS": {"listen_using": "direct"}}}


@pytest.fixture
def roomy(cluster):
    """The server with enough room for all clients without a pooler."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET max_connections = 300")
    reconnect()
    cluster.restart("fast")
    return cluster


@pytest.fixture
def start_pooler(roomy, tmp_path):
    started = []

    def start(options="", program=command):
        with or_skip():
            folder = tmp_path / f"pooler-{len(started)}"
            started.append(Pooler(folder, _server(roomy), SESSIONS, options, program).start())
        return started[-1]

    yield start
    for pooler in started:
        pooler.kill()


def _server(roomy):
    return f"host=127.0.0.1 port={roomy.port} user=postgres"


@pytest.fixture
def run(start_process, start_web):
    """Return a function that lets web processes enqueue all kinds of chains while workers run them.

    It returns the completed jobs in each second. ``observe`` is called while the work lasts.
    """

    def run(environment, jobchains=None, observe=lambda: None):
        options = {"jobchains": jobchains, "LEASE_SECONDS": "60", "SCHEDULES": "2", **environment}
        workers = [start_process("--slots", str(SLOTS), **options).until_ready() for _ in range(WORKERS)]
        since = time.monotonic()
        web = [start_web(REQUESTS, THREADS, **environment) for _ in range(WEB)]
        while any(process.process.poll() is None for process in web):
            observe()
            time.sleep(0.2)
        until(lambda: not unfinished(ALIAS), 240, lambda: (unfinished(ALIAS), [w.output[-2_000:] for w in workers]))
        seconds = time.monotonic() - since
        completed = Job.objects.using(ALIAS).with_status("completed").count()
        for process in web:
            process.wait(5)
            assert process.errors == 0, process.output
        for worker in workers:
            assert_ends_well(worker)
            assert "Traceback" not in worker.output
        acknowledged = [line for process in web for line in process.acknowledged()]
        assert len(acknowledged) >= WEB * REQUESTS
        assert_nothing_is_lost_or_doubled(acknowledged, ALIAS)
        assert Effect.objects.using(ALIAS).filter(label__regex=r"^s\d+ ").exists()
        assert not FailedAttempt.objects.using(ALIAS).exists()
        return round(completed / seconds)

    return run


#: Completed jobs per second, by the way to the server.
measured = {}


@pytest.fixture
def behind(roomy, run, report):
    """Run the fleet behind a pooler, and report what it needs and how fast it is."""

    def behind(pooler, **environment):
        clients, sessions = [0], [0]

        def observe():
            clients.append(len(pooler.show("CLIENTS")) - 1)
            sessions.append(len(pooler.show("SERVERS")))

        options = {**roomy.environment, **pooler.environment(roomy.url), **environment}
        rate = run(options, LISTEN_DIRECTLY, observe)
        assert max(clients) >= 200
        assert max(sessions) <= SESSIONS
        ratio = round(rate / measured["direct"], 2) if "direct" in measured else None
        report(clients=max(clients), sessions=max(sessions), jobs_per_second=rate, ratio_to_direct=ratio)

    return behind


def test_direct_connections_for_comparison(roomy, run, report):
    sessions = []
    measured["direct"] = run(roomy.environment, observe=lambda: sessions.append(count_sessions()))
    report(sessions=max(sessions), jobs_per_second=measured["direct"])


def count_sessions():
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        return cursor.fetchone()[0]


def test_all_kinds_of_work_through_a_transaction_pooler(start_pooler, behind):
    behind(start_pooler())


def test_all_kinds_of_work_with_the_drivers_prepared_statements(start_pooler, behind):
    if not capabilities.has_send_close_prepared():
        pytest.skip("NOT RUN: this libpq cannot remove prepared statements behind PgBouncer")
    pooler = start_pooler("max_prepared_statements = 200", command_that_prepares)
    behind(pooler, JOBCHAINS_TEST_DATABASE_OPTIONS=json.dumps({"prepare_threshold": 0, "server_side_binding": True}))
