"""The bare statements of a queue on SQLite, for the floors."""

import sqlite3

from benchmarks.project.settings import DATABASES
from benchmarks.statements import COLUMNS, JOB

NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
CLAIM = (
    f"UPDATE {JOB} SET status = 'running', attempt = attempt + 1, lease_number = lease_number + 1, "
    f"leased_by = 'bench', leased_until = strftime('%Y-%m-%d %H:%M:%f000', 'now', '60 seconds'), "
    f"last_attempt_at = {NOW} WHERE id IN (SELECT id FROM {JOB} WHERE status = 'pending' AND queue = 'default' "
    f"AND type_name = ? AND priority * -1 = 0 AND run_at <= {NOW} ORDER BY run_at, id LIMIT ?) "
    "RETURNING id, chain_id, input"
)
FINISH = (
    f"UPDATE {JOB} SET status = 'completed', output = '1', finished_at = {NOW}, completed_by = leased_by, "
    "leased_by = NULL, leased_until = NULL, last_error = NULL "
    "WHERE id = ? AND lease_number = 1 AND status || '' = 'running'"
)
EFFECT = "INSERT INTO project_effect (job_id, value) VALUES (?, 1)"
INSERT = (
    f"INSERT INTO {JOB} ({COLUMNS}) VALUES (?, ?, 0, 'bench.value', 'bench.value', 'default', 0, 'pending', {NOW}, "
    f"""0, 0, 0, '{{"i": 1}}', {NOW})"""
)


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(DATABASES["sqlite"]["NAME"], isolation_level=None, timeout=20)
    connection.executescript(DATABASES["sqlite"]["OPTIONS"]["init_command"])
    return connection
