"""Limits that the database sets for the sessions of workers and users."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def session_defaults(**values: str) -> Iterator[None]:
    """Set defaults of the database, for sessions that begin from now on; ``values``: by the names of settings."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        for setting, value in values.items():
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
        try:
            yield
        finally:
            for setting in values:
                cursor.execute(f"ALTER DATABASE {name} RESET {setting}")
