"""Converts ``DATABASE_URL`` to an entry of ``DATABASES``, without an extra dependency."""

from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit


def database_from_url(url: str) -> dict[str, Any]:
    """Accept ``postgres://user:password@host:port/name?sslmode=require`` or ``sqlite:////absolute/path.sqlite3``."""
    parts = urlsplit(url)
    if parts.scheme in ("postgres", "postgresql"):
        return _postgresql(parts)
    if parts.scheme == "sqlite":
        return sqlite(Path(unquote(parts.path[1:])))
    raise ValueError(f"DATABASE_URL starts with {parts.scheme!r}; use postgres:// or sqlite://")


def sqlite(path: Path) -> dict[str, Any]:
    """Return an entry for SQLite.

    With WAL, readers do not wait for the writer. With IMMEDIATE, a writer waits at BEGIN instead of failing later.
    """
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        },
    }


def _postgresql(parts: SplitResult) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": parts.port or "",
        "OPTIONS": dict(parse_qsl(parts.query)),
    }
