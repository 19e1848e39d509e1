"""Every move of the table, and each of them tried from every status it is not allowed from."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store import Effects, Store
from tests.store.jobs import MAIL, alter, create, lease, link, row, running, stored, tables
from tests.store.moves import (
    CREATIONS,
    ENDS,
    FREEINGS,
    MOVES,
    TARGETS,
    Call,
    Freeing,
    Move,
    job_with_status,
    waiting_with_status,
    waits,
)

pytestmark = pytest.mark.django_db

#: Public methods that leave every status as it is.
READERS = {
    "activity", "chain_type_names", "check", "counts_by_time", "counts_by_type", "failing_groups", "find_ended",
    "has_failed",
    "held_groups", "is_out_of_time", "lock", "lock_all", "lock_tails", "look", "next_due", "pending_groups",
    "prepare_for_workers", "present_workers", "queue_rules", "reads_within", "tails", "time_ago", "transaction",
    "type_names", "waits_at_most",
}  # fmt: skip
#: What is about workers and queues, and counts.
NOT_OF_JOBS = {
    "add_counts", "beat", "count_workers", "forget_keys", "leave", "limit_queue", "pause_queues", "prune_counts",
    "prune_workers",
    "resume_queues",
}  # fmt: skip
#: What is about attempts, and beside their jobs.
BESIDE_JOBS = {"defer", "say"}
#: Those that move by another's row: the sweeper frees, and what was deferred ends attempts or cancels. And those that
#: leave no job to have a status.
OTHERS = {"apply_deferred", "sweep", "delete", "prune"} | NOT_OF_JOBS | BESIDE_JOBS


def allowed(move: str, source: Status | None) -> set[Status]:
    return {row.target for row in TRANSITIONS if row.move == move and row.source == source}


WALK = [pytest.param(move, status, id=f"{move}-{status}") for move in MOVES for status in Status]


@pytest.mark.parametrize(("move", "status"), WALK)
def test_a_move_is_made_from_the_statuses_of_its_rows_and_changes_nothing_from_any_other(
    store: Store, move: Move, status: Status
) -> None:
    job = job_with_status(store, status, move.after)
    before = tables()
    made = move.call(store, job)
    targets = allowed(move.method, status)
    assert bool(made) is bool(targets)
    if targets:
        assert stored(job).status in targets & TARGETS.get(str(move), set(Status))
        assert tables() != before
    else:
        assert tables() == before


def test_the_moves_that_are_made_are_those_of_the_table(store: Store) -> None:
    made = {("create", None, undone(created, store)) for created in CREATIONS.values()}
    for status in Status:
        moves = [move for move in MOVES if allowed(move.method, status)]
        made |= {(move.method, status, undone(target_of, store, move, status)) for move in moves}
        freeings = FREEINGS if allowed("free", status) else []
        made |= {("free", status, undone(target_of_freeing, store, freeing, status)) for freeing in freeings}
    assert {row for row in made if row[2]} == {(row.move, row.source, row.target) for row in TRANSITIONS}


def target_of(store: Store, move: Move, status: Status) -> str | None:
    job = job_with_status(store, status, move.after)
    return stored(job).status if move.call(store, job) else None


def target_of_freeing(store: Store, freeing: Freeing, status: Status) -> str | None:
    dependent, blocker = waiting_with_status(store, status, freeing.policy)
    before = row(dependent)
    freeing.end(store, blocker)
    return stored(dependent).status if row(dependent) != before else None


def undone(call: Callable[..., str | None], *args: Any) -> str | None:
    """What a call returns, without what it did."""
    with transaction.atomic():
        returned = call(*args)
        transaction.set_rollback(True)
    return returned


# Jobs that are created


@pytest.mark.parametrize("status", CREATIONS)
def test_a_job_is_created_with_each_status_of_the_table(store: Store, status: str) -> None:
    assert CREATIONS[status](store) == status


def test_every_status_a_job_is_created_with_is_tested_here() -> None:
    assert allowed("create", None) == set(CREATIONS)


# Jobs that are freed, which is what the end of a blocker does to those that wait for it


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_the_end_of_the_last_blocker_frees_a_blocked_job_and_leaves_any_other_as_it_is(
    store: Store, freeing: Freeing, status: Status
) -> None:
    dependent, blocker = waiting_with_status(store, status, freeing.policy)
    before = row(dependent)
    freeing.end(store, blocker)
    if targets := allowed("free", status):
        assert stored(dependent).status == freeing.target
        assert freeing.target in targets
    else:
        assert row(dependent) == before


@pytest.mark.parametrize("end", [end for end, is_good in ENDS.values() if not is_good])
def test_a_blocker_that_fails_or_is_cancelled_leaves_a_job_that_waits_as_it_is(store: Store, end: Call) -> None:
    dependent, blocker = waiting_with_status(store, Status.BLOCKED, "wait")
    before = row(dependent)
    end(store, blocker)
    assert row(dependent) == before


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_a_job_with_another_open_blocker_is_not_made_pending(store: Store, freeing: Freeing) -> None:
    dependent, blocker = waiting_with_status(store, Status.BLOCKED, freeing.policy)
    link(dependent, *create(store, 1, MAIL, delay_seconds=60))
    freeing.end(store, blocker)
    assert stored(dependent).status == {"pending": "blocked", "failed": "failed"}[freeing.target]


@pytest.mark.parametrize("freeing", FREEINGS, ids=str)
def test_a_job_created_after_its_blocker_ended_becomes_what_it_would_have_become_by_the_end(
    store: Store, freeing: Freeing
) -> None:
    [blocker] = running(store, type_name=MAIL)
    freeing.end(store, blocker)
    [job_id] = create(store, blockers=(blocker.id,), on_blocker_failure=freeing.policy)
    assert stored(job_id).status == freeing.target


# The table itself


def test_every_row_of_the_table_is_a_public_method_of_the_store(store: Store) -> None:
    assert {row.move for row in TRANSITIONS} - public_methods(store) == {"free"}


def test_every_public_method_of_the_store_has_a_row_or_is_known_to_move_nothing(store: Store) -> None:
    assert public_methods(store) - {row.move for row in TRANSITIONS} == READERS | OTHERS


def test_every_row_of_the_table_is_walked_here() -> None:
    assert {move.method for move in MOVES} | {"free"} == {row.move for row in TRANSITIONS}


@pytest.mark.parametrize("status", Status)
def test_what_only_reads_changes_nothing_in_any_status(store: Store, status: Status) -> None:
    job = job_with_status(store, status)
    before = tables()
    assert store.lock(job.id) == store.look(job.id) == (status, job.lease_number)
    [tail] = store.lock_tails([job.id]).values()
    assert store.tails([job.id]) == {job.id: tail}
    assert (tail.job_id, tail.status) == (job.id, status)
    assert bool(store.check([lease(job)]).lost) is (status != "running")
    store.next_due({job.type_name: 60})
    store.prepare_for_workers()
    assert tables() == before


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_no_move_touches_another_job(store: Store, move: Move) -> None:
    taken = {"claim": "pending", "reap": "running"}.get(move.method)  # these take all there are
    others = {status: job_with_status(store, Status.BLOCKED) for status in Status if status != taken}
    job = job_with_status(store, Status.BLOCKED, move.after)
    source = next((row.source for row in TRANSITIONS if row.move == move.method and row.source), Status.RUNNING)
    for status, other in [*others.items(), (source, job)]:
        alter([other], status=status)
    before = [row(other) for other in others.values()]
    assert move.call(store, job) or move.method == "create"
    assert [row(other) for other in others.values()] == before


@pytest.mark.parametrize("status", Status)
def test_a_job_is_deleted_from_any_status(store: Store, status: Status) -> None:
    job = job_with_status(store, status, waits)
    assert store.delete([job.id], cascade=True, effects=Effects()) > {job.id}
    assert tables() == [[], [], []]


def public_methods(store: Store) -> set[str]:
    members = inspect.getmembers(type(store), inspect.isfunction)
    return {name for name, _ in members if not name.startswith("_")}
