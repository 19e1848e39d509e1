"""Writes rows with SQL statements, while only the keys are indexed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

#: Settings while rows are written: a crash costs only a run of minutes, and indexes are built at once.
SETTINGS = {"synchronous_commit": "off", "maintenance_work_mem": "'1GB'", "work_mem": "'256MB'", "jit": "off"}


@contextmanager
def statements() -> "Iterator[Statements]":
    run = Statements()
    for name, value in SETTINGS.items():
        run(f"SET {name} = {value}")
    try:
        yield run
    finally:
        for name in SETTINGS:
            run(f"RESET {name}")


class Statements:
    """Executes SQL unchanged; percent signs are not parameters."""

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def without_indexes(self, table: str) -> Iterator[None]:
        """Drop the indexes that do not belong to a constraint, and build them again at the end."""
        dropped = self(
            f"SELECT pg_get_indexdef(indexrelid), indexrelid::regclass FROM pg_index "
            f"WHERE indrelid = '{table}'::regclass "
            "AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)"
        )
        for _, name in dropped:
            self(f"DROP INDEX {name}")
        yield
        for definition, _ in dropped:
            self(definition)
