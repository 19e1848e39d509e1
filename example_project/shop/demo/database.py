"""The database of a demo: the one DATABASE_URL names, or a fresh file that is gone afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings
from django.db import connection, connections


@contextmanager
def demo_database() -> Iterator[str]:
    """Yields the DATABASE_URL that the worker process needs to see the same database."""
    if settings.DATABASE_URL:
        yield settings.DATABASE_URL
        return
    with TemporaryDirectory(prefix="tin-kettle-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "demo.sqlite3"
        _move_to(path)
        yield f"sqlite:///{path.as_posix()}"
        connections.close_all()


def _move_to(path: Path) -> None:
    """Points this process at another SQLite file, as Django's test runner does."""
    connection.close()
    connection.settings_dict["NAME"] = path
