"""Old chains are found by a walk along an index, and deleted unless a job of another chain needs them."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from django.db import connection, connections

from django_jobchains.models import Job
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.retention import EndedChains, EndPosition
from tests.store.conftest import with_locks
from tests.store.contract.test_interventions import in_state
from tests.support.connections import SERIALIZABLE, committing, elsewhere, holding, stopped_before, without_autocommit
from tests.support.jobs import MAIL, claim, create, failed_try, finished, link, next_job, running, running_job

pytestmark = pytest.mark.django_db

LAST_OF_ALL = UUID(int=2**128 - 1)
FAR = datetime(2051, 1, 1, tzinfo=UTC)
COMPLETED = EndedChains(("completed",), FAR)


def completed(store, count=1, **changes):
    jobs = running(store, count, **changes)
    store.attempts.finish([finished(job) for job in jobs])
    return [job.id for job in jobs]


def walk(store, ended, limit=1_000):
    """Return the last jobs of the chains that ended like this."""
    found, place = [], EndPosition(UUID(int=0))
    while place is not None:
        step = store.retention.find_ended("status", ended.statuses[0], place, LAST_OF_ALL, limit, ended)
        found += step.job_ids
        place = step.next
    return found


def prune(store, ended):
    return store.retention.prune(walk(store, ended), ended).deleted


def left():
    return set(Job.objects.values_list("chain_id", flat=True))


def test_old_chains_with_the_given_statuses_are_deleted(store):
    old = completed(store, 3)
    failed = running_job(store)
    store.attempts.fail([failed_try(failed)])
    store.db.ahead_seconds = 600
    young = completed(store)
    (open_,) = create(store, delay_seconds=600)
    assert prune(store, EndedChains(("completed",), store.stats.time_ago(300))) == set(old)
    assert left() == {failed.id, open_, *young}
    assert prune(store, EndedChains(("failed",), store.stats.time_ago(300))) == {failed.id}


@committing
@pytest.mark.postgresql
def test_chains_are_deleted_in_the_transaction_of_a_caller_without_autocommit(store):
    ids = completed(store)
    with without_autocommit():
        connection.cursor().execute(f"SET TRANSACTION ISOLATION LEVEL {SERIALIZABLE}")
        assert prune(store, COMPLETED) == set(ids)
    assert left() == set(ids)


def test_the_age_of_a_chain_is_that_of_its_last_job(store):
    job = running_job(store)
    store.attempts.finish([finished(job, None, next_job(job, delay_seconds=600))])
    assert prune(store, COMPLETED) == set()
    assert left() == {job.chain_id}


def test_only_chains_of_the_given_types_and_keys_are_deleted(store):
    ship, mail = completed(store), completed(store, type_name=MAIL)
    keyed = completed(store, type_name=MAIL, deduplication_key="k")
    assert prune(store, EndedChains(("completed",), FAR, (MAIL,), keyed=False)) == set(mail)
    assert left() == {*ship, *keyed}


def test_a_chain_is_kept_while_its_key_can_match(store):
    hour = timedelta(hours=1)
    lasting = {
        Deduplicate("a"): 60,
        Deduplicate("b", window=hour): 60,
        Deduplicate("c", "any", hour): 3_661,
        Deduplicate("d", "incomplete_or_recent", hour): 3_661,
        Deduplicate("e", "any"): None,
    }
    ids = {}
    for each in lasting:
        (job,) = running(store, deduplicate=each, deduplication_key=each.key)
        store.attempts.finish([finished(job, None, next_job(job, deduplication_key=each.key))])
        store.attempts.finish([finished(last) for last in claim(store)])
        ids[each] = job.chain_id
    for seconds in (60, 3_661, 10**8):
        store.db.ahead_seconds = seconds
        gone = {ids[each] for each, until in lasting.items() if until == seconds}
        assert prune(store, EndedChains(("completed",), store.stats.time_ago(0), keyed=False)) == gone


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_a_walk_finds_each_chain_once_in_the_order_of_their_ids(store, limit):
    ids = completed(store, 7, deduplication_key="k")
    ids += [completed(store, id=UUID(int=number))[0] for number in (1, 2**128 - 1)]
    assert walk(store, COMPLETED, limit) == sorted(ids)
    assert walk(store, EndedChains(("completed",), FAR, keyed=False), limit) == [min(ids), max(ids)]


@pytest.mark.parametrize("status", ["blocked", "pending", "running", "completed", "failed", "cancelled"])
def test_a_chain_is_kept_while_a_job_that_is_not_completed_needs_it(store, status):
    (blocker,) = completed(store)
    (needs,) = create(store, 1, MAIL, blockers=(blocker,))
    Job.objects.filter(pk=needs).update(status=status)
    deleted = {blocker} if status == "completed" else set()
    assert store.retention.prune([blocker], COMPLETED) == (deleted, {blocker} - deleted)
    assert left() == {blocker, needs} - deleted


@pytest.mark.parametrize("is_open", [False, True])
def test_chains_that_need_each_other_are_deleted_together_or_not_at_all(store, is_open):
    ids = [in_state(store, "cancelled") for _ in range(4)]
    for blocker, needs in pairwise(ids):
        link(needs, blocker, is_open=False)
    if is_open:
        link(*create(store, 1, MAIL, delay_seconds=60), ids[-1], is_open=False)
    deleted = set() if is_open else set(ids)
    assert store.retention.prune(ids, EndedChains(("cancelled",), FAR)) == (deleted, set(ids) - deleted)


def test_a_dry_run_deletes_nothing(store):
    ids = completed(store, 2)
    assert store.retention.prune(ids, COMPLETED, is_dry_run=True).deleted == set(ids)
    assert left() == set(ids)


@with_locks
def test_a_locked_chain_is_not_pruned(store):
    locked, free = completed(store, 2)
    holding(lambda store: store.attempts.lock(locked))
    assert elsewhere(lambda store: prune(store, COMPLETED)) == {free}


@committing
@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL locks rows, not the database")
def test_the_write_lock_of_sqlite_is_taken_before_anything_is_read(store, monkeypatch):
    """This holds even if transactions begin without a lock, which is SQLite's default."""
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "transaction_mode", "DEFERRED")
    ids = completed(store)
    pruning = stopped_before(2, lambda store: store.retention.prune(ids, COMPLETED))
    with (
        closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("BEGIN IMMEDIATE")
    assert pruning.result().deleted == set(ids)
    assert pruning.conflicts == []
