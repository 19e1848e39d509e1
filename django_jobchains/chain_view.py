"""Chains as a view of the database: the last job of each, with the input of its first.

A view and not a table: a chain *is* its jobs, and what can be derived is not stored. It costs the workers nothing, who
never read it, and people can ask it in SQL. Of one table, because nearly all that a chain is asked for stands on its
last job: so one index gives the rows in their order, and a page costs its rows, however many jobs there are. A job that
is completed without an output, not even JSON's null, has gone on; any other is the last of its chain.

The migration makes the view; where tables are made without migrations, as test runners may do, ``create_if_missing``
does after ``migrate``. On SQLite a migration that rebuilds the job table must drop it first.

PostgreSQL reads the tables of a view with the rights of the view's owner, whom row-level security does not restrict.
From version 15 on the view has ``security_invoker``: a role sees in it what it sees in the table.
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
           last.id AS current_job_id, last.status, last.output, last.last_error, last.finished_at
    FROM "django_jobchains_job" AS last
    WHERE (NOT (last.status = 'completed') OR last.output IS NOT NULL)
"""  # noqa: S608 - no values
DROP = f'DROP VIEW "{NAME}"'


_SET_INVOKER = f'ALTER VIEW IF EXISTS "{NAME}" SET (security_invoker = true)'
_RESET_INVOKER = f'ALTER VIEW IF EXISTS "{NAME}" RESET (security_invoker)'
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
    """The receiver of ``post_migrate``. Also sets ``security_invoker`` after an upgrade of the server to version 15."""
    connection = connections[using]
    with connection.cursor() as cursor:
        tables = {table.name for table in connection.introspection.get_table_list(cursor)}
        if "django_jobchains_job" in tables and NAME not in tables:
            cursor.execute(CREATE)
        if supports_invoker(connection) and _is_true(connection, _HAS_OWNERS_RIGHTS):
            cursor.execute(_SET_INVOKER)


def set_invoker(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """For a migration: lets the view read the table with the rights of the role that queries it."""
    if supports_invoker(schema_editor.connection):
        schema_editor.execute(_SET_INVOKER)


def reset_invoker(apps: Any, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The reverse of ``set_invoker``."""
    if supports_invoker(schema_editor.connection):
        schema_editor.execute(_RESET_INVOKER)


def supports_invoker(connection: BaseDatabaseWrapper) -> bool:
    version: int = getattr(connection, "pg_version", 0) if connection.vendor == "postgresql" else 0
    return version >= _FIRST_WITH_INVOKER


def bypasses_row_security(connection: BaseDatabaseWrapper) -> bool:
    """Whether the view shows rows of the job table that row-level security may hide from the role that queries it."""
    if connection.vendor != "postgresql":
        return False
    return _is_true(connection, _IS_TABLE_RESTRICTED) and _is_true(connection, _HAS_OWNERS_RIGHTS)


def _is_true(connection: BaseDatabaseWrapper, query: str) -> bool:
    """False also when the table or the view does not exist."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return bool(row and row[0])
