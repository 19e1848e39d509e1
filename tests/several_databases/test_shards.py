"""Four databases with the chains and the business rows of different tenants, and one supervisor with their workers."""

import io
import json
import signal
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.db.utils import ConnectionHandler

from django_jobchains import Deduplicate, chains, context, use_database
from django_jobchains.models import Job
from tests.several_databases.shard_settings import SHARDS, ShardRouter, shard
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import started_processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True, databases=["default", *SHARDS]),
]
TENANTS = [f"tenant-{number}" for number in range(12)]
#: Effects "written" in the chains of one tenant: of 5 single jobs, one with a key, 3 steps, and a fan-in of 2.
WRITTEN = 5 + 1 + 3 + 3


@pytest.fixture(scope="module")
def shards(django_db_setup, django_db_blocker):
    """The aliases of four databases with all tables."""
    default = connections.settings["default"]
    with django_db_blocker.unblock():
        try:
            for alias in SHARDS:
                connections.settings[alias] = ConnectionHandler({"default": shard(default, alias)}).settings["default"]
                execute(f'CREATE DATABASE "{connections.settings[alias]["NAME"]}"')
                call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
            yield SHARDS
        finally:
            for alias in SHARDS:
                connections[alias].close()
                execute(f'DROP DATABASE IF EXISTS "{connections.settings[alias]["NAME"]}" WITH (FORCE)')
                del connections[alias]
                del connections.settings[alias]


@pytest.fixture
def start_fleet(shards, transactional_db, settings, tmp_path):
    settings.DATABASE_ROUTERS = [ShardRouter()]
    databases = [argument for alias in shards for argument in ("--database", alias)]
    with started_processes(tmp_path, {"DJANGO_SETTINGS_MODULE": "tests.several_databases.shard_settings"}) as start:
        yield lambda *arguments, **options: start(*databases, *arguments, **options)


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
    connection.close()


def shard_of(tenant):
    return SHARDS[TENANTS.index(tenant) % len(SHARDS)]


def order(tenant, *, fails=False):
    """Do what a request of a tenant does: business rows and their chains, in one transaction of its shard."""
    with use_database(shard_of(tenant)), context.bound(tenant=tenant), transaction.atomic(shard_of(tenant)):
        made = [jobs.write.enqueue(0.01) for _ in range(5)]
        made += [jobs.write.enqueue(0, deduplicate=Deduplicate("once", tenant=tenant)) for _ in range(2)]
        parts = chains.enqueue_many([jobs.write.item(0) for _ in range(2)])
        made += [jobs.first.enqueue(2), *parts, jobs.gather.enqueue(blockers=parts)]
        for chain in dict.fromkeys(made):
            Effect.objects.create(job_id=chain.id, label=f"ordered by {tenant}")
        if fails:
            transaction.set_rollback(True, using=shard_of(tenant))


def incomplete(alias):
    return Job.objects.using(alias).exclude(status="completed").count()


def test_tenants_share_the_workers_but_not_the_databases(start_fleet):
    fleet = start_fleet("--slots", "4")
    workers = fleet.until_working(len(SHARDS))
    for tenant in TENANTS:
        order(tenant, fails=True)
        order(tenant)
    workers[0].kill()
    until(lambda: not any(map(incomplete, SHARDS)), 60, lambda: fleet.output)

    for alias in SHARDS:
        tenants = [tenant for tenant in TENANTS if shard_of(tenant) == alias]
        ordered = Effect.objects.using(alias).filter(label__startswith="ordered by ")
        assert set(ordered.values_list("label", flat=True)) == {f"ordered by {tenant}" for tenant in tenants}
        chain_ids = Job.objects.using(alias).filter(chain_index=0).values_list("id", flat=True)
        assert sorted(ordered.values_list("job_id", flat=True)) == sorted(chain_ids)
        assert {job.context["tenant"] for job in Job.objects.using(alias)} == set(tenants)
        assert Effect.objects.using(alias).filter(label="written").count() == WRITTEN * len(tenants)
        assert transactions_differ(alias) == 0
        assert_invariants(alias)
    with use_database("default"):
        assert not Job.objects.exists()
        assert not Effect.objects.exists()

    fleet.signal(signal.SIGTERM)
    assert fleet.wait() == 0, fleet.output


def transactions_differ(alias):
    """Return how many effects were written in another transaction than the one that completed their job."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM shop_effect effect JOIN django_jobchains_job job ON job.id = effect.job_id "
            "WHERE effect.label = 'written' AND effect.xmin <> job.xmin"
        )
        return cursor.fetchone()[0]


def test_each_database_has_its_own_workers_status_and_schedules(start_fleet):
    fleet = start_fleet("--slots", "1", "--processes", "2", SCHEDULES="1")
    fleet.until_working(2 * len(SHARDS))

    def has_ticked(alias):
        return Effect.objects.using(alias).filter(label__startswith="s0 ").exists()

    until(lambda: all(map(has_ticked, SHARDS)), 30, lambda: fleet.output)
    for alias in SHARDS:
        found = io.StringIO()
        call_command("jobchains", "status", "--database", alias, "--format", "json", stdout=found)
        assert len(json.loads(found.getvalue())["workers"]) == 2
        ticks = list(Effect.objects.using(alias).filter(label__startswith="s0 ").values_list("label", flat=True))
        assert len(ticks) == len(set(ticks))


def test_a_shard_that_is_down_does_not_stop_the_others(start_fleet):
    fleet = start_fleet("--slots", "2")
    fleet.until_working(len(SHARDS))
    down, *up = SHARDS
    name = connections.settings[down]["NAME"]
    with use_database(down):
        jobs.write.enqueue(0)
    until(lambda: not incomplete(down), 30, lambda: fleet.output)
    connections[down].close()
    execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
    try:
        execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        until(lambda: f'database "{name}" is not currently accepting connections' in fleet.output, 30)
        written = uuid4()
        for alias in up:
            with use_database(alias):
                Effect.objects.create(job_id=written, label="before")
                jobs.write.enqueue(0)
        until(lambda: not any(map(incomplete, up)), 30, lambda: fleet.output)
    finally:
        execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
    with use_database(down):
        jobs.write.enqueue(0)
    until(lambda: not incomplete(down), 30, lambda: fleet.output)
    assert len(fleet.workers()) == len(SHARDS)
