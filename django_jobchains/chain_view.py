"""Chains as a view of the database: the last job of each, with the input of its first.

A view and not a table: a chain *is* its jobs, and what can be derived is not stored. It costs the workers nothing, who
never read it, and people can ask it in SQL. Of one table, because nearly all that a chain is asked for stands on its
last job: so one index gives the rows in their order, and a page costs its rows, however many jobs there are. A job that
is completed without an output, not even JSON's null, has gone on; any other is the last of its chain.

The migration makes the view; where tables are made without migrations, as test runners may do, ``create_if_missing``
does after ``migrate``. On SQLite a migration that rebuilds the job table must drop it first.
"""

from typing import Any

from django.db import connections

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


def create_if_missing(*, using: str, **kwargs: Any) -> None:
    """The receiver of ``post_migrate``."""
    with connections[using].cursor() as cursor:
        tables = {table.name for table in connections[using].introspection.get_table_list(cursor)}
        if "django_jobchains_job" in tables and NAME not in tables:
            cursor.execute(CREATE)
