"""Concurrent calls about one record: the second one sees the result of the first."""

import pytest

from django_jobchains import records
from django_jobchains.store import record_operations
from django_jobchains.store.records import DequeueInTransaction
from django_jobchains.testing.contracts.concurrency import at_once
from tests.store.conftest import locks_rows
from tests.store.contract.records import HOUR
from tests.support.connections import committing, elsewhere, holding, in_turn

pytestmark = committing


def test_a_dequeue_inside_a_transaction_is_refused(model):
    model.make()
    with pytest.raises(DequeueInTransaction):
        holding(lambda store: model.dequeue(joins_transaction=False)).result()
    assert len(model.dequeue(joins_transaction=False)) == 1


def test_no_record_is_dequeued_twice(model):
    for _ in range(40):
        model.make()

    def take():
        return [each.id for _ in range(5) for each in model.dequeue(3)]

    taken = at_once([take] * 4)
    ids = [id_ for each in taken for id_ in each]
    ids += [each.id for each in model.dequeue(40)]
    assert sorted(ids) == sorted(model.rows.values_list("pk", flat=True))


@locks_rows
def test_a_locked_record_is_skipped(model):
    first, second = model.make(), model.make()
    holding(lambda store: model.lock(first))
    assert [each.id for each in model.dequeue()] == [second.pk]


@locks_rows
def test_a_locked_record_is_not_reset(model):
    record = model.put("processing", last_heartbeat_at=model.now() - HOUR)
    holder = holding(lambda store: model.lock(record))
    assert model.reset() == []
    holder.result()
    assert [id_ for id_, *_ in model.reset()] == [record.pk]


@locks_rows
def test_the_heartbeat_of_a_locked_record_is_skipped(model, store):
    locked, key = model.running()
    _, other = model.running()
    holding(lambda store: model.lock(locked))
    beat = store.records.beat(model.table, [key, other])
    assert (beat.lost, beat.locked) == ({}, {key})


@pytest.mark.parametrize("is_first", [True, False])
def test_an_end_and_a_reset(model, store, is_first):
    record, key = model.running()
    model.change(record, last_heartbeat_at=model.now() - HOUR)
    calls = [lambda store: model.end(key, "completed"), lambda store: model.reset()]
    states = in_either_order(store, calls if is_first else calls[::-1])
    assert [bool(result) for result in states] == [True, False]
    assert not model.end(key, "completed")
    assert model.row(record)["state"] == ("completed" if is_first else "queued")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("end", ["completed", "errored"])
def test_an_end_and_a_cancellation(model, store, end, is_first):
    record, key = model.running()
    calls = [lambda store: model.end(key, end, max_attempts=1), lambda store: records.cancel(record)]
    in_either_order(store, calls if is_first else calls[::-1])
    calls[0](store)  # An end that met the lock is written later.
    cancelled = "completed" if end == "completed" else "cancelled"
    uncancelled = "completed" if end == "completed" else "failed"
    assert model.row(record)["state"] == (uncancelled if is_first else cancelled)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_dequeue_and_a_cancellation(model, store, is_first):
    record = model.make()
    calls = [lambda store: model.dequeue(), lambda store: records.cancel(record)]
    in_either_order(store, calls if is_first else calls[::-1])
    row = model.row(record)
    assert (row["state"], row["cancel"]) == ("processing" if is_first else "cancelled", True)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_end_and_a_requeue_by_a_person(model, store, is_first):
    record, key = model.running()
    calls = [lambda store: model.end(key, "completed"), lambda store: records.requeue(record)]
    results = in_either_order(store, calls if is_first else calls[::-1])
    assert [bool(result) for result in results] == [True, False]
    assert not model.end(key, "completed")
    assert model.row(record)["state"] == ("completed" if is_first else "queued")


@locks_rows
@pytest.mark.parametrize("end", ["completed", "errored", "failed", "requeued", "handed_back", None])
def test_a_record_in_process_that_is_locked_is_cancelled_without_waiting(model, store, end):
    locked, key = model.running()
    _, other_key = model.running()
    waiting = model.make()
    holder = holding(lambda store: model.lock(locked))
    everything = model.rows.all()
    assert elsewhere(lambda store: records.cancel(everything)) == 3
    assert model.row(waiting)["state"] == "cancelled"
    table = model.table
    assert store.records.check(table, [key, other_key]).cancelled == {key, other_key}
    assert store.records.beat(table, [key, other_key]).cancelled == {key, other_key}
    assert store.deferred.apply_records(table) == [locked.pk]
    holder.result()
    if end is not None:
        cancelled = "completed" if end == "completed" else "cancelled"
        assert model.end(key, end, max_attempts=1) == {key: cancelled}
    assert store.deferred.apply_records(table) == []
    row = model.row(locked)
    state = {"completed": "completed", None: "processing"}.get(end, "cancelled")
    assert (row["state"], row["cancel"], row["num_failures"]) == (state, end is None, 0)
    assert not store.records.check(table, [key]).cancelled or end is None


@locks_rows
@pytest.mark.parametrize("move", [records.requeue, records.retry])
def test_a_record_that_is_queued_again_is_not_cancelled_by_an_earlier_request(model, store, move):
    record, key = model.running()
    holder = holding(lambda store: model.lock(record))
    assert elsewhere(lambda store: records.cancel(record)) == 1
    assert elsewhere(lambda store: records.retry(record)) == 0  # It does not wait for the lock.
    holder.result()
    model.end(key, "errored")
    assert model.row(record)["state"] == "cancelled"
    assert move(record) == 1
    store.deferred.apply_records(model.table)
    assert model.row(record)["state"] == "queued"


@locks_rows
@pytest.mark.parametrize(("move", "state"), [(records.cancel, "errored"), (records.requeue, "failed")])
def test_the_lock_of_a_record_that_would_not_change_is_not_waited_for(model, monkeypatch, move, state):
    monkeypatch.setattr(record_operations, "CANCEL_SECONDS", 600)
    completed = model.put("completed")
    model.put(state)
    holding(lambda store: model.lock(completed))
    everything = model.rows.all()
    assert elsewhere(lambda store: move(everything)) == 1


def in_either_order(store, calls):
    """Let the second call wait for the first one's transaction, and return both results."""
    return list(in_turn(*calls)) if store.db.locks_rows else [elsewhere(call) for call in calls]
