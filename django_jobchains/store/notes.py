"""What attempts say of themselves: log lines, and how far they are.

Nothing here waits for a job. Its row is locked while a handler completes it, and what that handler says meanwhile is to
be seen; so the row is only kept from being deleted. A job that is being deleted is passed by.
"""

import json
import time
from collections.abc import Collection, Sequence
from typing import Any

from django_jobchains.store.dialect import Dialect, ids_json
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import AttemptKey, Said

#: The attempt ``d`` is the last of its job. It may have ended.
_IS_LAST = "job.id = d.job_id AND job.lease_number = d.n"
_KEY = "job_id uuid, n int"
_LINE = f"{_KEY}, attempt int, age_seconds float, position int, level int, text text, fields text"
_PROGRESS = f"{_KEY}, attempt int, age_seconds float, fraction float, text text"
_OUTDATED = f"{_KEY}, start int, stop int"


class Notes(Dialect):
    @retried
    def say(self, said: Sequence[Said]) -> set[AttemptKey]:
        """Writes what attempts said, unless another attempt of the job has begun; what is said twice is written once.

        Returns the attempts whose job somebody has locked to delete it, and may not delete: of them nothing, or not
        all, was written.
        """
        with self.transaction():
            missed = self._write_lines([one for one in said if one.lines])
            self._delete_outdated([one for one in said if one.outdated and one.key not in missed])
            missed |= self._write_progress([one for one in said if one.progress])
            return self._last_attempts(missed) if missed else set()

    def _write_lines(self, said: Sequence[Said]) -> set[AttemptKey]:
        """Returns the attempts that were passed by."""
        now = time.monotonic()
        rows = [
            {
                **_row(one, now - line.said),
                "position": line.position,
                "level": line.level,
                "text": line.text,
                "fields": line.fields,
            }
            for one in said
            for line in one.lines
        ]
        # Once more after a commit whose answer was lost, it changes nothing, and has to tell that it is there.
        return self._write(
            f"INSERT INTO {self.log_line} (job_id, lease_number, position, attempt, said_at, level, text, fields) "
            f"SELECT job.id, d.n, d.position, d.attempt, {self._said_at}, d.level, d.text, d.fields{self.json_cast} "
            f"FROM {self.job} AS job JOIN {self._rows(_LINE)} ON {_IS_LAST} CROSS JOIN {self.clock} "
            f"WHERE true {self._by_ids} {self._kept('job')} "
            "ON CONFLICT (job_id, lease_number, position) DO UPDATE SET position = excluded.position "
            "RETURNING job_id, lease_number",
            said,
            rows,
        )

    def _write_progress(self, said: Sequence[Said]) -> set[AttemptKey]:
        """As ``_write_lines``. In the order of the ids: two that write some of the same rows must not wait for each
        other."""
        now = time.monotonic()
        latest = {one.key: one for one in said}
        rows = [
            {**_row(one, now - one.progress.said), "fraction": one.progress.fraction, "text": one.progress.text}
            for one in latest.values()
            if one.progress
        ]
        values = ("lease_number", "attempt", "said_at", "fraction", "text")
        return self._write(
            f"INSERT INTO {self.progress} (job_id, {', '.join(values)}) "
            f"SELECT job.id, d.n, d.attempt, {self._said_at}, d.fraction, d.text "
            f"FROM {self.job} AS job JOIN {self._rows(_PROGRESS)} ON {_IS_LAST} CROSS JOIN {self.clock} "
            f"WHERE true {self._by_ids} ORDER BY job.id {self._kept('job')} "
            f"ON CONFLICT (job_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in values)} "
            f"WHERE {self.progress}.lease_number <= excluded.lease_number RETURNING job_id, lease_number",
            said,
            rows,
        )

    @property
    def _said_at(self) -> str:
        return self._after("clock.now", "d.age_seconds * -1")

    def _write(self, sql: str, said: Sequence[Said], rows: Sequence[dict[str, Any]]) -> set[AttemptKey]:
        if not rows:
            return set()
        keys = {one.key for one in said}
        ids = self._by_ids_params([{"job_id": id_.hex} for id_, _ in keys])
        return keys - {(self._id(id_), number) for id_, number in self._fetch(sql, [json.dumps(rows), *ids])}

    def _delete_outdated(self, said: Sequence[Said]) -> None:
        """Only of jobs that are kept from being deleted by now: of others, somebody may have deleted the lines."""
        rows = [{**_key(one.key), "start": one.outdated.start, "stop": one.outdated.stop} for one in said]
        if not rows:
            return
        key = "job_id, lease_number, position"
        self._execute(
            f"DELETE FROM {self.log_line} WHERE ({key}) IN (SELECT line.job_id, line.lease_number, line.position "
            f"FROM {self._rows(_OUTDATED)} JOIN {self.log_line} AS line ON line.job_id = d.job_id "
            f"AND line.lease_number = d.n AND line.position >= d.start AND line.position < d.stop) "
            f"AND job_id {self._any(self._ids_sql)}",
            [json.dumps(rows), ids_json(one.job_id for one in said)],
        )

    def _last_attempts(self, keys: Collection[AttemptKey]) -> set[AttemptKey]:
        """Those of them that are the last of their jobs."""
        rows = [_key(key) for key in keys]
        found = self._fetch(
            f"SELECT job.id, job.lease_number FROM {self.job} AS job JOIN {self._rows(_KEY)} ON {_IS_LAST} "
            f"WHERE true {self._by_ids}",
            [json.dumps(rows), *self._by_ids_params(rows)],
        )
        return {(self._id(id_), number) for id_, number in found}


def _key(key: AttemptKey) -> dict[str, Any]:
    return {"job_id": key[0].hex, "n": key[1]}


def _row(said: Said, age_seconds: float) -> dict[str, Any]:
    return {**_key(said.key), "attempt": said.attempt, "age_seconds": round(max(age_seconds, 0), 6)}
