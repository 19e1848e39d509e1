"""The contract of a model of records: every transition, also from states that do not allow it."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import Model

from django_jobchains import records
from django_jobchains.policies import Backoff
from django_jobchains.records.checks import problems_of
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Dequeued, DequeueRequest, RecordEnd, RecordKey, RecordTable, Store, get_store
from django_jobchains.store.record_tables import COLUMNS, STATES
from tests.support.connections import Actor, end_all

FLAT = Backoff(60, 1, 60, 0)
HOUR = timedelta(hours=1)
#: The states from which people may move a record, by operation.
MOVABLE = {
    "cancel": {"queued": "canceled", "errored": "canceled", "processing": "processing"},
    "requeue": dict.fromkeys(("processing", "errored", "failed", "canceled"), "queued"),
    "retry": dict.fromkeys(("errored", "failed", "canceled"), "queued"),
}


@pytest.mark.django_db
class RecordTests:
    def make(self) -> Model:
        """Create a record that is ready to be processed."""
        raise NotImplementedError

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = get_store()
        yield store
        end_all()
        store.db.ahead_seconds = 0

    # Helpers

    def put(self, kind: RecordType, state: str = "queued", **values: Any) -> Model:
        """Create a record with these values in the package's columns."""
        record = self.make()
        defaults = {"lease_number": 1} if state == "processing" else {}
        self.change(kind, record, state=state, **{**defaults, **values})
        return record

    def change(self, kind: RecordType, record: Model, **values: Any) -> None:
        named = {kind.columns[name]: value for name, value in values.items()}
        kind.model._base_manager.filter(pk=record.pk).update(**named)

    def row(self, kind: RecordType, record: Model) -> dict[str, Any]:
        """Return the stored values of the package's columns."""
        stored = kind.model._base_manager.get(pk=record.pk)
        return {name: kind.value(stored, name) for name in COLUMNS}

    def dequeue(self, kind: RecordType, store: Store, limit: int = 10, **options: Any) -> list[Dequeued]:
        joins = options.pop("joins_transaction", True)
        retry_seconds = options.pop("retry_seconds", None)
        request = DequeueRequest(
            kind.select(store.using), limit, "host", kind.queue, retry_seconds, has_own_order=bool(kind.order_by)
        )
        return store.records.dequeue(kind.table(store.using), request, joins_transaction=joins)

    def running(self, kind: RecordType, store: Store, **values: Any) -> tuple[Model, RecordKey]:
        """Create a record and dequeue it."""
        record = self.make()
        [dequeued] = self.dequeue(kind, store)
        self.change(kind, record, **values) if values else None
        return record, dequeued.key

    def end(self, kind: RecordType, store: Store, key: RecordKey, end: str, **values: Any) -> dict[RecordKey, str]:
        return store.records.end(self.table(kind, store), [RecordEnd(*key, end, **values)])  # type: ignore[arg-type]

    def table(self, kind: RecordType, store: Store) -> RecordTable:
        return kind.table(store.using)

    def stalled(self, kind: RecordType, store: Store, held: Sequence[Any] = ()) -> list[RecordKey]:
        return store.record_operations.stalled(self.table(kind, store), 10, stalled_seconds=30, held=held)

    def reset(
        self, kind: RecordType, store: Store, keys: Sequence[RecordKey] | None = None, max_resets: int = 2
    ) -> Sequence[tuple[Any, ...]]:
        """Reset these records, or all that are stalled."""
        values: dict[str, Any] = {"stalled_seconds": 30, "max_resets": max_resets, "backoff": FLAT, "message": "gone"}
        keys = self.stalled(kind, store) if keys is None else keys
        return store.record_operations.reset(self.table(kind, store), keys, **values)

    def now(self, store: Store) -> datetime:
        return store.stats.time_ago(0)

    def actor(self, store: Store, call: Any, *, holds: bool = False) -> Actor:
        return Actor(lambda store: call(), holds=holds).start()


class RecordMoveTests(RecordTests):
    def test_the_model_passes_the_system_checks(self, kind: RecordType) -> None:
        assert list(problems_of(kind)) == []

    @pytest.mark.parametrize("state", [*STATES, "uploading"])
    def test_only_queued_records_are_dequeued(self, kind: RecordType, store: Store, state: str) -> None:
        record = self.put(kind, state, finished_at=self.now(store) - HOUR)
        before = self.row(kind, record)
        found = self.dequeue(kind, store)
        if state == "queued":
            assert [(each.id, each.state) for each in found] == [(record.pk, "processing")]
        else:
            assert (found, self.row(kind, record)) == ([], before)

    def test_a_dequeue_starts_an_attempt(self, kind: RecordType, store: Store) -> None:
        values: dict[str, Any] = {
            "failure_message": "before",
            "execution_logs": [{"key": "a"}],
            "finished_at": self.now(store),
        }
        record = self.put(kind, lease_number=6, num_failures=1, num_resets=1, **values)
        [dequeued] = self.dequeue(kind, store)
        row = self.row(kind, record)
        assert (dequeued.lease_number, row["lease_number"], row["state"]) == (7, 7, "processing")
        assert row["started_at"] == row["last_heartbeat_at"] is not None
        assert (row["failure_message"] or "", row["execution_logs"], row["finished_at"]) == ("", [], None)
        assert (row["worker_hostname"], row["num_failures"], row["num_resets"]) == ("host", 1, 1)

    def test_errored_records_are_dequeued_after_their_wait(self, kind: RecordType, store: Store) -> None:
        now = self.now(store)
        ready = self.put(kind, "errored", finished_at=now - HOUR, process_after=now - HOUR)
        self.put(kind, "errored", finished_at=now - HOUR, process_after=now + HOUR)
        self.put(kind, "errored", finished_at=now - HOUR / 4)
        found = self.dequeue(kind, store, retry_seconds=1800)
        assert [each.id for each in found] == [ready.pk]

    def test_errored_records_without_the_time_of_their_error_are_due(self, kind: RecordType, store: Store) -> None:
        unknown = self.put(kind, "errored")
        self.put(kind, "errored", process_after=self.now(store) + HOUR)
        assert store.record_counts.by_state(self.table(kind, store), kind.select(store.using), 10, 1800).due == 1
        assert self.dequeue(kind, store) == []
        assert [each.id for each in self.dequeue(kind, store, retry_seconds=1800)] == [unknown.pk]

    def test_records_wait_for_their_time(self, kind: RecordType, store: Store) -> None:
        now = self.now(store)
        self.put(kind, process_after=now + HOUR)
        past = self.put(kind, process_after=now - HOUR)
        assert [each.id for each in self.dequeue(kind, store)] == [past.pk]

    def test_a_flagged_record_is_canceled_instead_of_started(self, kind: RecordType, store: Store) -> None:
        record = self.put(kind, cancel=True, lease_number=3)
        assert [each.state for each in self.dequeue(kind, store)] == ["canceled"]
        row = self.row(kind, record)
        assert (row["state"], row["started_at"], row["finished_at"] is not None) == ("canceled", None, True)

    def test_records_of_a_paused_queue_stay(self, kind: RecordType, store: Store) -> None:
        self.make()
        store.queues.pause([kind.queue])
        assert self.dequeue(kind, store) == []
        store.queues.resume([kind.queue])
        assert len(self.dequeue(kind, store)) == 1

    def test_a_limit_counts_records_of_all_kinds(self, kind: RecordType, store: Store) -> None:
        now = self.now(store)
        for values in ({}, {"process_after": now - HOUR}, {"state": "errored", "finished_at": now - HOUR}):
            for _ in range(2):
                self.change(kind, self.make(), **values)
        assert [len(self.dequeue(kind, store, 4, retry_seconds=1)) for _ in range(3)] == [4, 2, 0]

    # Ends of attempts

    @pytest.mark.parametrize("end", ["completed", "errored", "failed", "requeued", "handed_back"])
    @pytest.mark.parametrize("state", [*STATES, "uploading"])
    def test_only_records_in_process_end(self, kind: RecordType, store: Store, state: str, end: str) -> None:
        record = self.put(kind, state, lease_number=1)
        before = self.row(kind, record)
        written = self.end(kind, store, (record.pk, 1), end)
        assert bool(written) == (state == "processing")
        assert (self.row(kind, record) == before) == (state != "processing")

    @pytest.mark.parametrize("end", ["completed", "errored", "failed", "requeued", "handed_back"])
    @pytest.mark.parametrize("number", [0, 2])
    def test_another_lease_number_ends_nothing(self, kind: RecordType, store: Store, end: str, number: int) -> None:
        record, (id_, _) = self.running(kind, store)
        before = self.row(kind, record)
        assert self.end(kind, store, (id_, number), end) == {}
        assert self.row(kind, record) == before

    @pytest.mark.parametrize(
        ("end", "failures", "state", "counted"),
        [
            ("completed", 0, "completed", 0),
            ("errored", 0, "errored", 1),
            ("errored", 1, "errored", 2),
            ("errored", 2, "failed", 3),
            ("failed", 0, "failed", 1),
        ],
    )
    def test_attempts_end(
        self, kind: RecordType, store: Store, end: str, failures: int, state: str, counted: int
    ) -> None:
        record, key = self.running(kind, store, num_failures=failures)
        assert self.end(kind, store, key, end, message="E: no", max_attempts=3) == {key: state}
        row = self.row(kind, record)
        assert (row["state"], row["num_failures"], row["finished_at"] is not None) == (state, counted, True)
        assert (row["failure_message"] or "") == ("" if state == "completed" else "E: no")

    @pytest.mark.parametrize("end", ["errored", "failed", "requeued", "handed_back"])
    def test_an_attempt_that_was_asked_to_stop_is_canceled(self, kind: RecordType, store: Store, end: str) -> None:
        record, key = self.running(kind, store, cancel=True)
        assert self.end(kind, store, key, end, message="E: no", max_attempts=3) == {key: "canceled"}
        row = self.row(kind, record)
        assert (row["num_failures"], row["failure_message"] or "", row["finished_at"] is not None) == (0, "", True)

    def test_a_handler_that_ignores_the_flag_completes_its_record(self, kind: RecordType, store: Store) -> None:
        _, key = self.running(kind, store, cancel=True)
        assert self.end(kind, store, key, "completed") == {key: "completed"}

    def test_a_record_that_is_requeued_waits_for_its_time(self, kind: RecordType, store: Store) -> None:
        after = self.now(store) + HOUR
        record, key = self.running(kind, store)
        assert self.end(kind, store, key, "requeued", process_after=after) == {key: "queued"}
        row = self.row(kind, record)
        assert (row["process_after"], row["cancel"], row["started_at"]) == (after, False, None)
        assert (row["num_failures"], row["num_resets"], row["finished_at"]) == (0, 0, None)

    def test_a_record_that_is_handed_back_is_as_before(self, kind: RecordType, store: Store) -> None:
        past = self.now(store) - HOUR
        record = self.put(kind, process_after=past, num_failures=1)
        before = self.row(kind, record)
        [dequeued] = self.dequeue(kind, store)
        assert self.end(kind, store, dequeued.key, "handed_back") == {dequeued.key: "queued"}
        changed = {"lease_number", "worker_hostname", "last_heartbeat_at"}
        row = self.row(kind, record)
        assert {name: row[name] for name in row if name not in changed} == {
            name: before[name] for name in before if name not in changed
        }

    # Heartbeats and resets

    @pytest.mark.parametrize("state", [*STATES, "uploading"])
    def test_a_heartbeat_finds_what_is_lost(self, kind: RecordType, store: Store, state: str) -> None:
        record = self.put(kind, state, lease_number=2)
        table = self.table(kind, store)
        beat = store.records.beat(table, [(record.pk, 2), (record.pk, 1)])
        assert beat.lost[record.pk, 1] == "taken_by_another_worker"
        reasons = {"processing": None, "completed": "already_completed", "canceled": "cancelled"}
        assert beat.lost.get((record.pk, 2)) == reasons.get(state, "taken_by_another_worker")
        assert (self.row(kind, record)["last_heartbeat_at"] is not None) == (state == "processing")

    def test_a_heartbeat_finds_deleted_and_canceled_records(self, kind: RecordType, store: Store) -> None:
        deleted, flagged = self.put(kind, "processing"), self.put(kind, "processing", cancel=True)
        key = (deleted.pk, 1)
        deleted.delete()
        beat = store.records.beat(self.table(kind, store), [key, (flagged.pk, 1)])
        assert (beat.lost, beat.canceled, beat.locked) == ({key: "not_found"}, {(flagged.pk, 1)}, set())

    @pytest.mark.parametrize("state", [*STATES, "uploading"])
    def test_only_stalled_records_are_reset(self, kind: RecordType, store: Store, state: str) -> None:
        now = self.now(store)
        stalled = self.put(kind, state, last_heartbeat_at=now - HOUR)
        self.put(kind, state, last_heartbeat_at=now)
        found = self.reset(kind, store)
        assert [(id_, new) for id_, new, _ in found] == ([(stalled.pk, "queued")] if state == "processing" else [])

    def test_a_reset_backs_off(self, kind: RecordType, store: Store) -> None:
        now = self.now(store)
        record = self.put(kind, "processing", last_heartbeat_at=now - HOUR, started_at=now - HOUR, num_failures=1)
        self.reset(kind, store)
        row = self.row(kind, record)
        assert (row["state"], row["num_resets"], row["num_failures"], row["started_at"]) == ("queued", 1, 1, None)
        assert timedelta(seconds=59) < row["process_after"] - now < timedelta(seconds=90)

    @pytest.mark.parametrize(("max_resets", "num_resets"), [(0, 0), (2, 2)])
    def test_a_record_without_resets_left_fails(
        self, kind: RecordType, store: Store, max_resets: int, num_resets: int
    ) -> None:
        times = dict.fromkeys(("started_at", "last_heartbeat_at"), self.now(store) - HOUR)
        record = self.put(kind, "processing", num_resets=num_resets, **times)
        assert self.reset(kind, store, max_resets=max_resets) == [(record.pk, "failed", num_resets)]
        row = self.row(kind, record)
        assert (row["failure_message"], row["num_failures"], row["finished_at"] is not None) == ("gone", 0, True)
        assert row["started_at"] == times["started_at"]

    def test_a_stalled_record_that_was_to_stop_is_canceled(self, kind: RecordType, store: Store) -> None:
        times = dict.fromkeys(("started_at", "last_heartbeat_at"), self.now(store) - HOUR)
        record = self.put(kind, "processing", cancel=True, **times)
        assert self.reset(kind, store) == [(record.pk, "canceled", 0)]
        assert self.row(kind, record)["started_at"] == times["started_at"]

    def test_records_that_the_caller_holds_are_not_found(self, kind: RecordType, store: Store) -> None:
        first, second = [self.put(kind, "processing", last_heartbeat_at=self.now(store) - HOUR) for _ in range(2)]
        assert self.stalled(kind, store, held=[first.pk]) == [(second.pk, 1)]

    def test_only_the_given_records_are_reset(self, kind: RecordType, store: Store) -> None:
        records = [self.put(kind, "processing", last_heartbeat_at=self.now(store) - HOUR) for _ in range(2)]
        assert [id_ for id_, *_ in self.reset(kind, store, [(records[1].pk, 1)])] == [records[1].pk]

    @pytest.mark.parametrize("column", ["last_heartbeat_at", "lease_number", "state"])
    def test_a_record_that_has_changed_since_is_not_reset(self, kind: RecordType, store: Store, column: str) -> None:
        record = self.put(kind, "processing", last_heartbeat_at=self.now(store) - HOUR)
        keys = self.stalled(kind, store)
        changed = {"last_heartbeat_at": self.now(store), "lease_number": 2, "state": "errored"}
        self.change(kind, record, **{column: changed[column]})
        assert (keys, self.reset(kind, store, keys)) == ([(record.pk, 1)], [])

    # Operations by people

    @pytest.mark.parametrize("move", list(MOVABLE))
    @pytest.mark.parametrize("state", [*STATES, "uploading"])
    def test_people_can_move_records_in_some_states(
        self, kind: RecordType, store: Store, state: str, move: str
    ) -> None:
        values: dict[str, Any] = {"num_failures": 2, "num_resets": 1, "process_after": self.now(store) - HOUR}
        record = self.put(kind, state, **values)
        before = self.row(kind, record)
        target = MOVABLE[move].get(state)
        assert getattr(records, move)(record) == (target is not None)
        row = self.row(kind, record)
        if target is None:
            assert row == before
            return
        assert (row["state"], row["cancel"]) == (target, move == "cancel")
        counts = (0, 0) if move == "retry" else (2, 1)
        assert (row["num_failures"], row["num_resets"]) == counts
        assert (row["finished_at"] is not None) == (target == "canceled")
        if target == "queued":
            assert row["process_after"] is None

    def test_waiting_records_that_are_flagged_in_the_database_are_canceled(
        self, kind: RecordType, store: Store
    ) -> None:
        states = ["queued", "errored", "processing", "completed"]
        made = [self.put(kind, state, cancel=True, process_after=self.now(store) + HOUR) for state in states]
        table = self.table(kind, store)
        canceled = [store.record_operations.cancel_flagged(table, limit) for limit in (1, 10, 10)]
        assert [len(ids) for ids in canceled] == [1, 1, 0]
        assert {id_ for ids in canceled for id_ in ids} == {made[0].pk, made[1].pk}
        assert [self.row(kind, record)["state"] for record in made] == [
            "canceled",
            "canceled",
            "processing",
            "completed",
        ]
