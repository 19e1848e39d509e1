"""The database view of chains: the last job of each chain, with the input of its first job.

It is a view, because a chain consists of its jobs, and derived values are not stored. It costs the workers nothing, as
they never read it, and people can query it in SQL. It reads one table, because the last job has nearly all values of
its chain: one index returns the rows in order, and the cost of a page depends on its rows only. A completed job without
an output, not even a JSON null, has a continuation. Any other job is the last of its chain.

The migration creates the view. Where tables are created without migrations, as in some test runners,
``create_if_missing`` does so after ``migrate``. On SQLite, a migration that rebuilds the job table must drop it first.

PostgreSQL reads the tables of a view with the rights of its owner, who is not subject to row-level security. From
version 15 on, the view has ``security_invoker``: a role sees the same rows in the view as in the table.
"""

from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

NAME = "django_jobchains_chain"
CREATE = f"""
    CREATE VIEW "{NAME}" AS
    SELECT last.chain_id AS id, last.chain_type_name AS type_name,
           (SELECT root.input FROM "django_jobchains_job" AS root WHERE root.id = last.chain_id) AS input,
           last.deduplication_key,
           (SELECT root.created_at FROM "django_jobchains_job" AS root WHERE root.id = last.chain_id) AS created_at,
           last.id AS current_job_id, last.status, last.output, last.last_error, last.finished_at, last.queue,
           last.schedule_name, last.scheduled_for, last.expires_at, last.cancel_requested_at
    FROM "django_jobchains_job" AS last
    WHERE (NOT (last.status = 'completed') OR last.output IS NOT NULL)
"""  # noqa: S608 - no values
DROP = f'DROP VIEW "{NAME}"'

_SET_INVOKER = f'ALTER VIEW IF EXISTS "{NAME}" SET (security_invoker = true)'
#: The first version of PostgreSQL with ``security_invoker``.
_FIRST_WITH_INVOKER = 150_000
_HAS_OWNERS_RIGHTS = f"""
    SELECT NOT EXISTS (
        SELECT FROM pg_options_to_table(reloptions) WHERE option_name = 'security_invoker' AND option_value::boolean
    )
    FROM pg_class WHERE oid = to_regclass('"{NAME}"')
"""  # noqa: S608 - no values
_IS_TABLE_RESTRICTED = "SELECT relrowsecurity FROM pg_class WHERE oid = to_regclass('\"django_jobchains_job\"')"


def create_if_missing(*, using: str, **kwargs: Any) -> None:
    """Receive ``post_migrate``. Also sets ``security_invoker`` after an upgrade of the server to version 15."""
    connection = connections[using]
    with connection.cursor() as cursor:
        tables = {table.name for table in connection.introspection.get_table_list(cursor)}
        if "django_jobchains_job" in tables and NAME not in tables:
            cursor.execute(CREATE)
        if supports_invoker(connection) and _is_true(connection, _HAS_OWNERS_RIGHTS):
            cursor.execute(_SET_INVOKER)


def set_invoker(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """For a migration that has created or replaced the view: PostgreSQL resets its options."""
    if supports_invoker(schema_editor.connection):
        schema_editor.execute(_SET_INVOKER)


def supports_invoker(connection: BaseDatabaseWrapper) -> bool:
    version: int = getattr(connection, "pg_version", 0) if connection.vendor == "postgresql" else 0
    return version >= _FIRST_WITH_INVOKER


def bypasses_row_security(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the view shows rows that row-level security may hide from the role that queries it."""
    if connection.vendor != "postgresql":
        return False
    return _is_true(connection, _IS_TABLE_RESTRICTED) and _is_true(connection, _HAS_OWNERS_RIGHTS)


def _is_true(connection: BaseDatabaseWrapper, query: str) -> bool:
    """Return the value of a query, or False if the table or the view does not exist."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return bool(row and row[0])
