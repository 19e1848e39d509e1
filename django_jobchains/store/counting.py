"""How much there is, counted up to a limit and found by index: what has ended costs nothing."""

from datetime import datetime
from typing import NamedTuple

from django_jobchains.store.dialect import Dialect
from django_jobchains.store.errors import retried

#: Groups of one queue, type and priority that are counted,
MOST_GROUPS = 1_000
#: failed jobs and failed attempts, the newest, that are looked at,
MOST_FAILED = 1_000
#: and characters of an error.
ERROR_LENGTH = 500


class PendingGroup(NamedTuple):
    """Pending jobs of one queue, type and priority. ``due_seconds``: how long the first of them is due, below 0 when it
    is not due yet."""

    queue: str
    type_name: str
    due: int
    scheduled: int
    due_seconds: float


class HeldGroup(NamedTuple):
    """Jobs that are running, blocked or failed, of one queue and type."""

    status: str
    queue: str
    type_name: str
    jobs: int


class FailingGroup(NamedTuple):
    """The attempts of a type that failed lately, with the start of the last error."""

    type_name: str
    attempts: int
    crashes: int
    jobs: int
    error: str
    last_at: datetime
    last_seconds: float


class Activity(NamedTuple):
    """Of the database's server."""

    oldest_transaction_seconds: float | None
    connections: int
    most_connections: int


class Counting(Dialect):
    @retried
    def pending_groups(self, count_to: int) -> list[PendingGroup]:
        """Counts each group up to ``count_to``; at most ``MOST_GROUPS`` of them, and one more when there are more."""
        of_group = (
            f"FROM {self.job} AS job WHERE job.status = 'pending' AND job.queue = g.queue "
            "AND job.type_name = g.type_name AND job.priority * -1 = g.rank"
        )
        rows = self._fetch(
            f"WITH RECURSIVE {self._groups_sql} SELECT g.queue, g.type_name, "
            f"(SELECT count(*) FROM (SELECT 1 {of_group} AND job.run_at <= {self.now} LIMIT %s) AS due), "
            f"(SELECT count(*) FROM (SELECT 1 {of_group} AND job.run_at > {self.now} LIMIT %s) AS later), "
            f"{self._seconds('g.run_at', self.now)} FROM (SELECT * FROM groups LIMIT %s) AS g",
            [count_to, count_to, MOST_GROUPS + 1],
        )
        return [PendingGroup(*row) for row in rows]

    @retried
    def held_groups(self, count_to: int) -> list[HeldGroup]:
        """Counts running and blocked jobs, up to ``count_to`` of each, and the newest ``MOST_FAILED`` failed ones."""
        parts = {
            "running": "ORDER BY leased_until LIMIT %s",
            "blocked": "ORDER BY chain_id, chain_index LIMIT %s",
            "failed": f"ORDER BY chain_id DESC, chain_index DESC LIMIT {MOST_FAILED}",
        }
        union = " UNION ALL ".join(
            f"SELECT * FROM (SELECT status, queue, type_name FROM {self.job} "
            f"WHERE status = '{status}' {rest}) AS {status}"
            for status, rest in parts.items()
        )
        rows = self._fetch(
            f"SELECT status, queue, type_name, count(*) FROM ({union}) AS held GROUP BY status, queue, type_name",
            [count_to, count_to],
        )
        return [HeldGroup(*row) for row in rows]

    @retried
    def failing_groups(self, within_seconds: float) -> list[FailingGroup]:
        """Of the newest ``MOST_FAILED`` failed attempts those that are so young, by type, the last to fail first."""
        # For a limit that is a parameter PostgreSQL may plan to sort them all, and for a join to read all jobs.
        rows = self._fetch(
            f"""
            WITH newest AS (
                SELECT failed.id, failed.job_id, failed.kind, failed.finished_at,
                       (SELECT job.type_name FROM {self.job} AS job WHERE job.id = failed.job_id) AS type_name
                FROM (SELECT * FROM {self.failed_attempt} ORDER BY id DESC LIMIT {MOST_FAILED}) AS failed
            ),
            lately AS (
                SELECT type_name, count(*) AS attempts, sum(CASE kind WHEN 'crash' THEN 1 ELSE 0 END) AS crashes,
                       count(DISTINCT job_id) AS jobs, max(id) AS last_id, max(finished_at) AS last_at
                FROM newest WHERE finished_at > {self._after(self.now, "%s")} GROUP BY type_name
            )
            SELECT type_name, attempts, crashes, jobs,
                   (SELECT substr(error, 1, {ERROR_LENGTH}) FROM {self.failed_attempt} WHERE id = last_id),
                   {self._as_text("last_at")}, {self._seconds("last_at", self.now)}
            FROM lately ORDER BY last_id DESC
            """,
            [-within_seconds],
        )
        return [FailingGroup(*row)._replace(last_at=self._time(row[-2])) for row in rows]

    def activity(self) -> Activity | None:
        """What the server is busy with; None for a database without one."""
        return None
