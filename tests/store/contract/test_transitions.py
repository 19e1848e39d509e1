"""Every transition in the table of statuses is made, and every other one is not."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store import Store
from django_jobchains.store.rows import Effects
from tests.store.contract.moves import (
    CREATIONS,
    ENDS,
    FREEINGS,
    MOVES,
    TARGETS,
    Freeing,
    Move,
    add_blocker,
    job_with_status,
    waiting_with_status,
)
from tests.store.methods import public_methods
from tests.support.jobs import MAIL, alter, create, link, row, running, stored, tables

pytestmark = pytest.mark.django_db

#: Public methods that change no status.
READERS = {
    "attempts.has_failed", "attempts.lock", "attempts.lock_all", "chains.contexts", "chains.ends", "chains.lifetimes",
    "jobs.next_due", "jobs.state_of", "last_jobs.chains_of", "last_jobs.lock", "last_jobs.lock_chain_of",
    "last_jobs.of_jobs", "last_jobs.read", "leases.check", "leases.expired", "queues.rules", "retention.find_ended",
    "stats.activity", "stats.chain_type_names", "stats.counts_by_time", "stats.counts_by_type",
    "stats.failing_types", "stats.held_groups", "stats.pending_groups", "stats.queue_names", "stats.time_ago",
    "stats.type_names", "workers.count", "workers.present",
}  # fmt: skip
#: Methods about workers, queues, keys, counts and records.
NOT_OF_JOBS = {
    "deferred.apply_records", "deferred.defer_records", "keys.forget", "queues.limit", "queues.pause", "queues.resume",
    "stats.add_counts", "stats.prune_counts", "workers.beat", "workers.leave", "workers.prune",
}  # fmt: skip
#: Methods about attempts that do not write to their jobs.
BESIDE_JOBS = {"deferred.defer", "logs.write"}
#: Methods without rows in the table of transitions: the sweeper and deferred writes make transitions of other methods,
#: and deleted jobs have no status.
OTHERS = {"deferred.apply", "blockers.sweep", "chains.delete", "retention.prune"} | NOT_OF_JOBS | BESIDE_JOBS


def allowed(move: str, source: Status | None) -> set[Status]:
    return {row.target for row in TRANSITIONS if row.move == move and row.source == source}


WALK = [pytest.param(move, status, id=f"{move}-{status}") for move in MOVES for status in Status]


@pytest.mark.parametrize(("move", "status"), WALK)
def test_move_is_made_from_the_statuses_of_the_table_and_from_no_other(store, move, status):
    job = job_with_status(store, status, move.before)
    before = tables()
    made = move.call(store, job)
    targets = allowed(move.method, status)
    assert bool(made) is bool(targets)
    if targets:
        assert stored(job).status in targets & TARGETS.get(str(move), set(Status))
        assert tables() != before
    else:
        assert tables() == before


def test_all_moves_together_are_exactly_the_table(store):
    made = {("create", None, rolled_back(created, store)) for created in CREATIONS.values()}
    for status in Status:
        moves = [move for move in MOVES if allowed(move.method, status)]
        made |= {(move.method, status, rolled_back(target_of, store, move, status)) for move in moves}
        freeings = FREEINGS if allowed("free", status) else []
        made |= {("free", status, rolled_back(target_of_freeing, store, freeing, status)) for freeing in freeings}
    assert {row for row in made if row[2]} == {(row.move, row.source, row.target) for row in TRANSITIONS}


def target_of(store: Store, move: Move, status: Status) -> str | None:
    job = job_with_status(store, status, move.before)
    return stored(job).status if move.call(store, job) else None


def target_of_freeing(store: Store, freeing: Freeing, status: Status) -> str | None:
    dependent, blocker = waiting_with_status(store, status, freeing.policy)
    before = row(dependent)
    freeing.end(store, blocker)
    return stored(dependent).status if row(dependent) != before else None


def rolled_back(call: Callable[..., str | None], *args: Any) -> str | None:
    """Make a call, roll it back, and return its result."""
    with transaction.atomic():
        returned = call(*args)
        transaction.set_rollback(True)
    return returned


# Created jobs


@pytest.mark.parametrize("status", CREATIONS)
def test_job_is_created_with_each_status_of_the_table(store, status):
    assert CREATIONS[status](store) == status


def test_every_initial_status_is_tested():
    assert allowed("create", None) == set(CREATIONS)


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


def test_every_row_of_the_table_is_a_public_method_of_the_store(store):
    assert {row.move for row in TRANSITIONS} - movers() == {"free"}


def test_every_public_method_of_the_store_has_a_row_or_is_listed_here(store):
    assert movers() == {row.move for row in TRANSITIONS} - {"free"}


def test_every_row_of_the_table_is_tested():
    assert {move.method for move in MOVES} | {"free"} == {row.move for row in TRANSITIONS}


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


def movers() -> set[str]:
    """Return the public methods that are not listed above."""
    assert public_methods() >= READERS | OTHERS
    of_jobs = {name for name in public_methods() if not name.startswith("record")}  # records have their own table
    return {name.partition(".")[2] for name in of_jobs - READERS - OTHERS}
