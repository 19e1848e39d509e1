"""The database of a demo: the one in DATABASE_URL, or a temporary SQLite file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from django.conf import settings
from django.db import connection, connections


@contextmanager
def demo_database() -> Iterator[str]:
    """Yield the DATABASE_URL of the demo's database, for the worker process."""
    if settings.DATABASE_URL:
        yield settings.DATABASE_URL
        return
    with TemporaryDirectory(prefix="tin-kettle-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "demo.sqlite3"
        _move_to(path)
        yield f"sqlite:///{path.as_posix()}"
        connections.close_all()


def _move_to(path: Path) -> None:
    """Switch this process to another SQLite file, as Django's test runner does."""
    connection.close()
    connection.settings_dict["NAME"] = path
