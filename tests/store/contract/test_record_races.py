"""Concurrent calls about one record: the second one sees the result of the first."""

from typing import Any

import pytest

from django_jobchains import records
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.store.records import DequeueInTransaction
from django_jobchains.testing.contracts.concurrency import at_once
from tests.store.contract.store_tests import committing
from tests.store.contract.test_records import HOUR, RecordTests


class RecordRaceTests(RecordTests):
    @pytest.fixture(autouse=True)
    def _rows(self, kind: RecordType) -> Any:
        yield
        kind.model._base_manager.all().delete()

    @committing
    def test_a_dequeue_inside_a_transaction_is_refused(self, kind: RecordType, store: Store) -> None:
        self.make()
        with pytest.raises(DequeueInTransaction):
            self.actor(store, lambda: self.dequeue(kind, store, joins_transaction=False), holds=True).result()
        assert len(self.dequeue(kind, store, joins_transaction=False)) == 1

    @committing
    def test_no_record_is_dequeued_twice(self, kind: RecordType, store: Store) -> None:
        for _ in range(40):
            self.make()

        def take() -> list[Any]:
            return [each.id for _ in range(5) for each in self.dequeue(kind, store, 3)]

        taken = at_once([take] * 4)
        ids = [id_ for each in taken for id_ in each]
        ids += [each.id for each in self.dequeue(kind, store, 40)]
        assert sorted(ids) == sorted(kind.model._base_manager.values_list("pk", flat=True))

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_locked_record_is_skipped(self, kind: RecordType, store: Store) -> None:
        first, second = self.make(), self.make()
        self.actor(store, lambda: self.locked(kind, store, first), holds=True).until_stopped()
        assert [each.id for each in self.dequeue(kind, store)] == [second.pk]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_locked_record_is_not_reset(self, kind: RecordType, store: Store) -> None:
        record = self.put(kind, "processing", last_heartbeat_at=self.now(store) - HOUR)
        holder = self.actor(store, lambda: self.locked(kind, store, record), holds=True).until_stopped()
        assert self.reset(kind, store) == []
        holder.result()
        assert [id_ for id_, *_ in self.reset(kind, store)] == [record.pk]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_the_heartbeat_of_a_locked_record_is_skipped(self, kind: RecordType, store: Store) -> None:
        locked, key = self.running(kind, store)
        _, other = self.running(kind, store)
        self.actor(store, lambda: self.locked(kind, store, locked), holds=True).until_stopped()
        beat = store.records.beat(self.table(kind, store), [key, other])
        assert (beat.lost, beat.locked) == ({}, {key})

    @committing
    @pytest.mark.parametrize("is_first", [True, False])
    def test_an_end_and_a_reset(self, kind: RecordType, store: Store, is_first: bool) -> None:
        record, key = self.running(kind, store)
        self.change(kind, record, last_heartbeat_at=self.now(store) - HOUR)
        calls: list[Any] = [lambda: self.end(kind, store, key, "completed"), lambda: self.reset(kind, store)]
        states = self.in_turn(store, calls if is_first else calls[::-1])
        assert [bool(result) for result in states] == [True, False]
        assert not self.end(kind, store, key, "completed")
        assert self.row(kind, record)["state"] == ("completed" if is_first else "queued")

    @committing
    @pytest.mark.parametrize("is_first", [True, False])
    @pytest.mark.parametrize("end", ["completed", "errored"])
    def test_an_end_and_a_cancellation(self, kind: RecordType, store: Store, end: str, is_first: bool) -> None:
        record, key = self.running(kind, store)
        calls: list[Any] = [lambda: self.end(kind, store, key, end, max_attempts=1), lambda: records.cancel(record)]
        self.in_turn(store, calls if is_first else calls[::-1])
        calls[0]()  # An end that met the lock is written later.
        canceled = "completed" if end == "completed" else "canceled"
        uncanceled = "completed" if end == "completed" else "failed"
        assert self.row(kind, record)["state"] == (uncanceled if is_first else canceled)

    @committing
    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_dequeue_and_a_cancellation(self, kind: RecordType, store: Store, is_first: bool) -> None:
        record = self.make()
        calls: list[Any] = [lambda: self.dequeue(kind, store), lambda: records.cancel(record)]
        self.in_turn(store, calls if is_first else calls[::-1])
        row = self.row(kind, record)
        assert (row["state"], row["cancel"]) == ("processing" if is_first else "canceled", True)

    @committing
    @pytest.mark.parametrize("is_first", [True, False])
    def test_an_end_and_a_requeue_by_a_person(self, kind: RecordType, store: Store, is_first: bool) -> None:
        record, key = self.running(kind, store)
        calls: list[Any] = [lambda: self.end(kind, store, key, "completed"), lambda: records.requeue(record)]
        results = self.in_turn(store, calls if is_first else calls[::-1])
        assert [bool(result) for result in results] == [True, False]
        assert not self.end(kind, store, key, "completed")
        assert self.row(kind, record)["state"] == ("completed" if is_first else "queued")

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    @pytest.mark.parametrize("end", ["completed", "errored", "failed", "requeued", "handed_back", None])
    def test_a_record_in_process_that_is_locked_is_canceled_without_waiting(
        self, kind: RecordType, store: Store, end: str | None
    ) -> None:
        locked, key = self.running(kind, store)
        _, other_key = self.running(kind, store)
        waiting = self.make()
        holder = self.actor(store, lambda: self.locked(kind, store, locked), holds=True).until_stopped()
        everything = kind.model._base_manager.all()
        assert self.actor(store, lambda: records.cancel(everything)).result() == 3
        assert self.row(kind, waiting)["state"] == "canceled"
        table = self.table(kind, store)
        assert store.records.check(table, [key, other_key]).canceled == {key, other_key}
        assert store.records.beat(table, [key, other_key]).canceled == {key, other_key}
        assert store.deferred.apply_records(table) == [locked.pk]
        holder.result()
        if end is not None:
            canceled = "completed" if end == "completed" else "canceled"
            assert self.end(kind, store, key, end, max_attempts=1) == {key: canceled}
        assert store.deferred.apply_records(table) == []
        row = self.row(kind, locked)
        state = {"completed": "completed", None: "processing"}.get(end, "canceled")
        assert (row["state"], row["cancel"], row["num_failures"]) == (state, end is None, 0)
        assert not store.records.check(table, [key]).canceled or end is None

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    @pytest.mark.parametrize("move", [records.requeue, records.retry])
    def test_a_record_that_is_queued_again_is_not_canceled_by_an_earlier_request(
        self, kind: RecordType, store: Store, move: Any
    ) -> None:
        record, key = self.running(kind, store)
        holder = self.actor(store, lambda: self.locked(kind, store, record), holds=True).until_stopped()
        assert self.actor(store, lambda: records.cancel(record)).result() == 1
        assert self.actor(store, lambda: records.retry(record)).result() == 0  # It does not wait for the lock.
        holder.result()
        self.end(kind, store, key, "errored")
        assert self.row(kind, record)["state"] == "canceled"
        assert move(record) == 1
        store.deferred.apply_records(self.table(kind, store))
        assert self.row(kind, record)["state"] == "queued"

    def in_turn(self, store: Store, calls: list[Any]) -> list[Any]:
        """Let the second call wait for the first one's transaction, and return both results."""
        if not store.db.locks_rows:
            return [self.actor(store, call).result() for call in calls]
        first = self.actor(store, calls[0], holds=True).until_stopped()
        second = self.actor(store, calls[1]).until_blocked_or_ended()
        return [first.result(), second.result()]

    def locked(self, kind: RecordType, store: Store, record: Any) -> Any:
        return store.records.lock(self.table(kind, store), record.pk)

    @pytest.fixture
    def _locks_rows(self, store: Store) -> None:
        if not store.db.locks_rows:
            pytest.skip("one transaction writes at a time")
