"""Execution logs of records: stored at once by the attempt that holds the record, and cleared by the next attempt."""

from typing import Any

import pytest
from django.db.models import Model

from django_jobchains.attempts.record_phases import RecordPhases
from django_jobchains.handlers.abort_signal import AbortSignal
from django_jobchains.records import RecordLost, RecordRun
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from tests.store.contract.test_records import RecordTests


class RecordLogTests(RecordTests):
    def test_an_entry_is_stored_at_once_and_rewritten(self, kind: RecordType, store: Store) -> None:
        record, run = self.started(kind, store)
        run.add_log("list", "ls -l", out="a.tif", exit_code=0)
        entry = run.add_log("convert", ["convert", "a b"])
        assert [self.shown(each) for each in self.logs(kind, record)] == [
            ("list", "ls -l", "a.tif", 0),
            ("convert", ["convert", "a b"], "", None),
        ]
        entry.update(out="done", exit_code=2)
        assert self.shown(self.logs(kind, record)[1]) == ("convert", ["convert", "a b"], "done", 2)

    def test_the_next_attempt_begins_without_entries(self, kind: RecordType, store: Store) -> None:
        record, run = self.started(kind, store)
        run.add_log("convert", "convert a.tif")
        self.end(kind, store, (record.pk, 1), "requeued")
        assert len(self.logs(kind, record)) == 1
        self.dequeue(kind, store)
        assert self.logs(kind, record) == []

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            (None, "not_found"),
            ({"lease_number": 2}, "taken_by_another_worker"),
            ({"state": "completed"}, "already_completed"),
        ],
    )
    def test_an_attempt_without_its_record_stores_nothing(
        self, kind: RecordType, store: Store, values: dict[str, Any] | None, reason: str
    ) -> None:
        record, run = self.started(kind, store)
        entry = run.add_log("convert", "convert a.tif")
        if values is None:
            kind.model._base_manager.filter(pk=record.pk).delete()
        else:
            self.change(kind, record, execution_logs=[], **values)
        for write in (entry.update, lambda: run.add_log("more", "")):
            with pytest.raises(RecordLost) as caught:
                write()
            assert caught.value.reason == reason
        assert values is None or self.logs(kind, record) == []

    # Helpers

    def started(self, kind: RecordType, store: Store) -> tuple[Model, RecordRun]:
        """Create and dequeue a record, and return what its handler receives."""
        record, key = self.running(kind, store)
        signal = AbortSignal()
        phases = RecordPhases(kind, key, store, signal)
        return record, RecordRun(record, 1, signal, phases, type_name=kind.name, queue=kind.queue)

    def logs(self, kind: RecordType, record: Model) -> list[dict[str, Any]]:
        logs: list[dict[str, Any]] = self.row(kind, record)["execution_logs"]
        return logs

    def shown(self, entry: dict[str, Any]) -> tuple[Any, ...]:
        return entry["key"], entry["command"], entry["out"], entry["exit_code"]
