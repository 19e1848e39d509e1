"""A database for each shop: a SQLite file, or one on the server that ``JOBCHAINS_TEST_DATABASE`` names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier


@contextmanager
def database(name: str, folder: Path) -> Iterator[str]:
    """Create a database for the example project, and yield its URL."""
    server = os.environ.get("JOBCHAINS_TEST_DATABASE", "sqlite")
    if server == "sqlite":
        yield f"sqlite:///{folder / name}.sqlite3"
        return
    unique = f"browser_{name}_{os.getpid()}"
    with psycopg.connect(f"{server.rstrip('/')}/postgres", autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(unique)))
        try:
            yield f"{server.rstrip('/')}/{unique}"
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(unique)))
