"""The logs of attempts: their lines and their progress.

Nothing here waits for a job. Its row is locked while a handler completes it, and the lines of that handler should be
visible during that time. So the row is only kept from being deleted. A job that is being deleted is skipped.
"""

import json
import time
from collections.abc import Sequence
from typing import Any

from django_jobchains.payloads.codecs import encode_json, encode_text
from django_jobchains.store.database import Part, ids_json, statement
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import AttemptKey, LogEntries

#: The attempt ``d`` is the last of its job. It may have ended.
_IS_LAST = "job.id = d.job_id AND job.lease_number = d.n"
_KEY = "job_id uuid, n int"
_LINE = f"{_KEY}, attempt int, age_seconds float, position int, level int, text text, fields text"
_PROGRESS = f"{_KEY}, attempt int, age_seconds float, fraction float, text text"
_OUTDATED = f"{_KEY}, start int, stop int"


class Logs(Part):
    @retried
    def write(self, logs: Sequence[LogEntries]) -> set[AttemptKey]:
        """Write the log of attempts, unless another attempt of the job has begun. A repeated line is written once.

        Returns the attempts whose job is locked by a transaction that deletes it and may still roll back. For these
        attempts, nothing or not everything was written.
        """
        with self.db.transaction():
            missed = self._write_lines([one for one in logs if one.lines])
            self._delete_outdated([one for one in logs if one.outdated and one.key not in missed])
            missed |= self._write_progress([one for one in logs if one.progress])
            if not missed:
                return missed
            ids = self.db.by_ids_params(id_.hex for id_, _ in missed)
            found = self.db.fetch(self._last, [json.dumps([_key(key) for key in missed]), *ids])
            return {(self.db.id(id_), number) for id_, number in found}

    def _write_lines(self, logs: Sequence[LogEntries]) -> set[AttemptKey]:
        """Return the attempts that were skipped."""
        now = time.monotonic()
        rows = [
            {
                **_row(one, now - line.logged_at),
                "position": line.position,
                "level": line.level,
                "text": encode_text(line.text),
                "fields": line.fields and encode_json(line.fields),
            }
            for one in logs
            for line in one.lines
        ]
        return self._insert(self._insert_lines, logs, rows)

    def _write_progress(self, logs: Sequence[LogEntries]) -> set[AttemptKey]:
        """Return the attempts that were skipped."""
        now = time.monotonic()
        latest = {one.key: one for one in logs}
        rows = [
            {
                **_row(one, now - one.progress.logged_at),
                "fraction": one.progress.fraction,
                "text": encode_text(one.progress.text),
            }
            for one in latest.values()
            if one.progress
        ]
        return self._insert(self._insert_progress, logs, rows)

    def _insert(self, sql: str, logs: Sequence[LogEntries], rows: Sequence[dict[str, Any]]) -> set[AttemptKey]:
        if not rows:
            return set()
        keys = {one.key for one in logs}
        ids = self.db.by_ids_params(id_.hex for id_, _ in keys)
        return keys - {(self.db.id(id_), number) for id_, number in self.db.fetch(sql, [json.dumps(rows), *ids])}

    def _delete_outdated(self, logs: Sequence[LogEntries]) -> None:
        """Delete lines of jobs that are now kept from being deleted: the lines of others may be gone already."""
        rows = [{**_key(one.key), "start": one.outdated.start, "stop": one.outdated.stop} for one in logs]
        if rows:
            self.db.execute(self._delete_lines, [json.dumps(rows), ids_json(one.job_id for one in logs)])

    # Statements

    @property
    def _logged_at(self) -> str:
        return self.db.after("clock.now", "d.age_seconds * -1")

    @statement
    def _insert_lines(self) -> str:
        # Repeated after a commit whose reply was lost, this changes nothing, and must return that the line exists.
        return f"""
            INSERT INTO {self.tables.log_line} (job_id, lease_number, position, attempt, logged_at, level, text, fields)
            SELECT job.id, d.n, d.position, d.attempt, {self._logged_at}, d.level, d.text, d.fields{self.db.json_cast}
            FROM {self.tables.job} AS job JOIN {self.db.rows(_LINE)} ON {_IS_LAST} CROSS JOIN {self.db.clock}
            WHERE true {self.db.by_ids} {self.db.keep_lock("job")}
            ON CONFLICT (job_id, lease_number, position) DO UPDATE SET position = excluded.position
            RETURNING job_id, lease_number
        """

    @statement
    def _insert_progress(self) -> str:
        # In the order of the ids: two transactions that write some of the same rows must not deadlock.
        return f"""
            INSERT INTO {self.tables.progress} (job_id, lease_number, attempt, logged_at, fraction, text)
            SELECT job.id, d.n, d.attempt, {self._logged_at}, d.fraction, d.text
            FROM {self.tables.job} AS job JOIN {self.db.rows(_PROGRESS)} ON {_IS_LAST} CROSS JOIN {self.db.clock}
            WHERE true {self.db.by_ids} ORDER BY job.id {self.db.keep_lock("job")}
            ON CONFLICT (job_id) DO UPDATE SET lease_number = excluded.lease_number, attempt = excluded.attempt,
                logged_at = excluded.logged_at, fraction = excluded.fraction, text = excluded.text
            WHERE {self.tables.progress}.lease_number <= excluded.lease_number RETURNING job_id, lease_number
        """

    @statement
    def _delete_lines(self) -> str:
        return f"""
            DELETE FROM {self.tables.log_line} WHERE (job_id, lease_number, position) IN (
                SELECT line.job_id, line.lease_number, line.position
                FROM {self.db.rows(_OUTDATED)} JOIN {self.tables.log_line} AS line ON line.job_id = d.job_id
                AND line.lease_number = d.n AND line.position >= d.start AND line.position < d.stop
            ) AND job_id {self.db.any_id}
        """

    @statement
    def _last(self) -> str:
        return f"""
            SELECT job.id, job.lease_number FROM {self.tables.job} AS job JOIN {self.db.rows(_KEY)} ON {_IS_LAST}
            WHERE true {self.db.by_ids}
        """


def _key(key: AttemptKey) -> dict[str, Any]:
    return {"job_id": key[0].hex, "n": key[1]}


def _row(logs: LogEntries, age_seconds: float) -> dict[str, Any]:
    return {**_key(logs.key), "attempt": logs.attempt, "age_seconds": round(max(age_seconds, 0), 6)}
