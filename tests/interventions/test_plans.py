"""Operations find their rows by index, however many completed chains the tables contain."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import Store
from tests.interventions.test_statement_counts import blocked, failed, pending, running
from tests.support.plans import Plan, plan_of, rows_read, use_plans

pytestmark = [pytest.mark.django_db, pytest.mark.postgresql, pytest.mark.slow]

TABLES = {model._meta.db_table for model in (Job, JobBlocker, FailedAttempt)}
#: Completed chains, each with the previous one as a blocker, and with a failed attempt.
HISTORY = """
    INSERT INTO django_jobchains_job (id, chain_id, chain_index, chain_type_name, type_name, queue, priority, status,
        attempt, lease_number, crashes, input, output, created_at, run_at)
    SELECT d.id, d.id, 0, 'shop.ship', 'shop.ship', 'default', 0, 'completed', 1, 1, 0, '{}', 'null', clock_timestamp(),
        clock_timestamp()
    FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 20000)) AS d;
    INSERT INTO django_jobchains_jobblocker (job_id, position, blocker_id, is_open)
    SELECT id, 0, before, false FROM (SELECT id, lag(id) OVER (ORDER BY id) AS before FROM django_jobchains_job) AS d
    WHERE before IS NOT NULL;
    INSERT INTO django_jobchains_failedattempt (job_id, attempt, lease_number, kind, error, traceback, worker,
        started_at, finished_at)
    SELECT id, 1, 1, 'error', '', '', '', clock_timestamp(), clock_timestamp() FROM django_jobchains_job;
"""


@pytest.fixture(scope="module")
def _history(django_db_setup, django_db_blocker):
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(HISTORY)
            cursor.execute(f"ANALYZE {', '.join(TABLES)}")
        yield
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {Job._meta.db_table} CASCADE")


@pytest.fixture(params=["auto", "force_generic_plan"], autouse=True)
def _mode(request, _history):
    use_plans(request.param)


CALLS: dict[str, tuple[Callable[[Store, int], list[Chain]], Callable[[Any], Any]]] = {
    "cancel pending": (pending, chains.cancel),
    "cancel blocked": (blocked, chains.cancel),
    "cancel running": (running, chains.cancel),
    "retry": (failed, chains.retry),
    "run_now": (pending, chains.run_now),
    "reschedule": (pending, partial(chains.reschedule, delay=60)),
    "delete": (pending, chains.delete),
    "delete blocked": (blocked, chains.delete),
    "delete failed": (failed, chains.delete),
}


@pytest.mark.parametrize("count", [1, 10, 100])
@pytest.mark.parametrize("name", CALLS)
def test_a_verb_reads_few_rows(store, name, count):
    make, call = CALLS[name]
    ids = [chain.id for chain in make(store, count)]
    assert_reads_little(plan_of(lambda: call(ids)), count)


@pytest.mark.parametrize("count", [1, 10, 100])
def test_a_cascade_reads_few_rows(store, count):
    made = [pair for chain in pending(store, count) for pair in [chains.enqueue("shop.mail", blockers=[chain])]]
    assert_reads_little(plan_of(lambda: chains.delete(made, cascade=True)), 2 * count)
    assert Job.objects.count() == 20_000


def assert_reads_little(found: list[Plan], wanted: int) -> None:
    scans = [node for node in found if node.get("Relation Name") in TABLES]
    assert not [(node["Alias"], rows_read(node)) for node in scans if node["Node Type"] == "Seq Scan"]
    assert not [(node["Alias"], rows_read(node)) for node in scans if rows_read(node) > 4 * wanted + 20]
