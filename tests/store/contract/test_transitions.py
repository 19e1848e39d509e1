"""Every transition in the table of statuses is made, and every other one is not."""

import re

import pytest
from django.test.utils import CaptureQueriesContext

from django_jobchains.models import Job
from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store.rows import Effects
from tests.store.contract.moves import (
    CREATIONS,
    ENDS,
    FREEINGS,
    MOVES,
    TARGETS,
    add_blocker,
    job_with_status,
    waiting_with_status,
)
from tests.store.methods import public_methods
from tests.support.jobs import MAIL, alter, create, link, row, running, stored, tables

pytestmark = pytest.mark.django_db

#: Writes that lock a row and change nothing.
LOCKS = re.compile(r"SET (\w+) = \1 ")
GUARD = re.compile(r"job\.status( \|\| '')? (=|IN) |CASE job\.status WHEN 'running' THEN true ELSE false END")
#: Public methods that change no status.
READERS = {
    "attempts.has_failed", "attempts.lock", "attempts.lock_all", "chains.contexts", "chains.ends", "chains.lifetimes",
    "chains.wait_of", "jobs.next_due", "jobs.state_of", "jobs.types_of", "last_jobs.chains_of", "last_jobs.lock",
    "last_jobs.lock_chain_of",
    "last_jobs.of_jobs", "last_jobs.read", "leases.check", "leases.expired", "limits.next_due",
    "limits.without_keys", "queues.count", "queues.rules", "retention.find_ended",
    "stats.activity", "stats.counts_by_time", "stats.counts_by_type", "stats.counts_of",
    "stats.failing_types", "stats.held_groups", "stats.pending_groups", "stats.time_ago",
    "rates.recent", "stats.names", "stats.running_groups", "stats.waiting_with", "workers.count", "workers.present",
}  # fmt: skip
#: Methods about workers, queues, keys, counts and records.
NOT_OF_JOBS = {
    "deferred.apply_records", "deferred.defer_records", "keys.forget",
    "queues.limit", "queues.override", "queues.start_within", "queues.pause", "queues.reset", "queues.resume",
    "rates.forget", "rates.refund",
    "stats.add_counts", "stats.prune_counts", "workers.beat", "workers.leave", "workers.prune",
}  # fmt: skip
#: Methods about attempts that do not write to their jobs.
BESIDE_JOBS = {"deferred.defer", "logs.write"}
#: Methods without rows in the table of transitions: the sweeper and deferred writes make transitions of other methods,
#: and deleted jobs have no status.
OTHERS = {
    "deferred.apply", "blockers.sweep", "chains.delete", "retention.prune", "limits.set_keys",
} | NOT_OF_JOBS | BESIDE_JOBS  # fmt: skip


def allowed(move, source):
    return {row.target for row in TRANSITIONS if row.move == move and row.source == source}


WALK = [pytest.param(move, status, id=f"{move}-{status}") for move in MOVES for status in Status]


@pytest.mark.parametrize(("move", "status"), WALK)
def test_move_is_made_from_the_statuses_of_the_table_and_from_no_other(store, move, status):
    job = job_with_status(store, status, move.before)
    before = tables()
    made = move.call(store, job)
    targets = targets_of(move, status)
    assert bool(made) is bool(targets)
    assert (tables() != before) is bool(targets)
    assert not targets or {stored(job).status} == targets


def targets_of(move, status):
    return allowed(move.method, status) & TARGETS.get(str(move), set(Status))


# Created jobs


@pytest.mark.parametrize("status", CREATIONS)
def test_job_is_created_with_each_status_of_the_table(store, status):
    assert CREATIONS[status](store) == status


# Jobs that are freed by the end of their blocker


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_end_of_the_last_blocker_frees_a_blocked_job_and_changes_no_other(store, freeing, status):
    dependent, blocker = waiting_with_status(store, status, freeing.policy)
    before = row(dependent)
    freeing.end(store, blocker)
    if targets := allowed("free", status):
        assert stored(dependent).status == freeing.target
        assert freeing.target in targets
    else:
        assert row(dependent) == before


@pytest.mark.parametrize("end", [end for end, is_good in ENDS.values() if not is_good])
def test_blocker_that_fails_or_is_cancelled_does_not_change_a_waiting_job(store, end):
    dependent, blocker = waiting_with_status(store, Status.BLOCKED, "wait")
    before = row(dependent)
    end(store, blocker)
    assert row(dependent) == before


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_job_with_another_open_blocker_is_not_made_pending(store, freeing):
    dependent, blocker = waiting_with_status(store, Status.BLOCKED, freeing.policy)
    link(dependent, *create(store, 1, MAIL, delay_seconds=60))
    freeing.end(store, blocker)
    assert stored(dependent).status == {"pending": "blocked", "failed": "failed"}[freeing.target]


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_job_created_after_its_blocker_ended_gets_the_same_status_as_one_created_before(store, freeing):
    [blocker] = running(store, type_name=MAIL)
    freeing.end(store, blocker)
    [job_id] = create(store, blockers=(blocker.id,), on_blocker_failure=freeing.policy)
    assert stored(job_id).status == freeing.target


# The table itself


def test_the_tested_moves_are_exactly_the_table():
    made = {("create", None, status) for status in CREATIONS}
    made |= {("free", "blocked", freeing.target) for freeing in FREEINGS}
    made |= {
        (move.method, status, target) for move in MOVES for status in Status for target in targets_of(move, status)
    }
    assert made == {(row.move, row.source, row.target) for row in TRANSITIONS}


def test_every_public_method_of_the_store_has_a_row_or_is_listed_here(store):
    assert movers() == {row.move for row in TRANSITIONS} - {"free"}


@pytest.mark.parametrize("status", Status)
def test_reading_changes_nothing_in_any_status(store, status):
    job = job_with_status(store, status)
    before = tables()
    assert store.attempts.lock(job.id) == store.jobs.state_of(job.id) == (status, job.lease_number)
    [last_job] = store.last_jobs.lock([job.id]).values()
    assert store.last_jobs.read([job.id]) == {job.id: last_job}
    assert (last_job.job_id, last_job.status) == (job.id, status)
    assert bool(store.leases.check([job.key]).lost) is (status != "running")
    store.jobs.next_due({job.type_name: 60})
    store.db.prepare_for_workers()
    assert tables() == before


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_no_move_changes_another_job(store, move):
    taken = {"claim": "pending", "reap": "running"}.get(move.method)  # these moves take all jobs with the status
    others = {status: job_with_status(store, Status.BLOCKED) for status in Status if status != taken}
    job = job_with_status(store, Status.BLOCKED, move.before)
    source = next((row.source for row in TRANSITIONS if row.move == move.method and row.source), Status.RUNNING)
    for status, other in [*others.items(), (source, job)]:
        alter([other], status=status)
    before = [row(other) for other in others.values()]
    assert move.call(store, job) or move.method == "create"
    assert [row(other) for other in others.values()] == before


@pytest.mark.parametrize("status", Status)
def test_job_is_deleted_from_any_status(store, status):
    job = job_with_status(store, status, add_blocker)
    assert store.chains.delete([job.id], cascade=True, effects=Effects()) > {job.id}
    assert tables() == [[], [], []]


def movers():
    """Return the public methods that are not listed above."""
    assert public_methods() >= READERS | OTHERS
    # Records, schedules and the names of tasks have their own tables.
    of_jobs = {name for name in public_methods() if not name.startswith(("record", "schedule", "task"))}
    return {name.partition(".")[2] for name in of_jobs - READERS - OTHERS}


# Conditions in the statements themselves


@pytest.mark.parametrize("move", [move for move in MOVES if move.method != "create"], ids=str)
def test_move_has_a_condition_on_the_old_status(store, move):
    source = next(row.source for row in TRANSITIONS if row.move == move.method)
    job = job_with_status(store, source or Status.PENDING, move.before)
    assert guarded_updates(store, lambda: move.call(store, job))


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_end_of_a_blocker_has_a_condition_on_the_old_status(store, freeing):
    _, blocker = waiting_with_status(store, Status.BLOCKED, freeing.policy)
    guarded_updates(store, lambda: freeing.end(store, blocker))


def guarded_updates(store, call):
    """Return the UPDATEs of a call that change jobs. Each has a condition on the status, in addition to any lock."""
    with CaptureQueriesContext(store.connection) as captured:
        call()
    table = f'UPDATE "{Job._meta.db_table}" AS job'  # not the statements of the test itself
    found = [query["sql"] for query in captured if table in query["sql"] and not LOCKS.search(query["sql"])]
    assert [sql for sql in found if not GUARD.search(sql.rpartition("WHERE job.id")[2])] == []
    return found
