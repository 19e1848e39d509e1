"""SQLite 3.37, the oldest version that the newest Django supports, loaded instead of the machine's library."""

import platform
import subprocess
from pathlib import Path
from zlib import crc32

from tests.support.servers import CACHE, Unavailable
from tests.support.servers.downloads import fetch, move, npm_package

VERSION = "3.37.2"
OPTIONS = (
    "-O1",
    "-fPIC",
    "-shared",
    "-DSQLITE_THREADSAFE=1",
    "-DSQLITE_ENABLE_JSON1",
    # Without this option, a connection to a busy database sleeps for whole seconds.
    "-DHAVE_USLEEP=1",
    "-Wl,-soname,libsqlite3.so.0",
)


def with_sqlite_3_37(python: str) -> dict[str, str]:
    """Return the environment variables that make this Python load SQLite 3.37."""
    if platform.system() != "Linux":
        raise Unavailable("Python can be run with SQLite 3.37 on Linux only.")
    env = {"LD_LIBRARY_PATH": str(library().parent)}
    code = "import sqlite3; print(sqlite3.sqlite_version)"
    found = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True).stdout.strip()
    if found != VERSION:
        raise Unavailable(f"{python} has its own SQLite {found} built in.")
    return env


def library() -> Path:
    recipe = crc32(" ".join(OPTIONS).encode())
    path = CACHE / f"sqlite-{VERSION}-{recipe:08x}" / "libsqlite3.so.0"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        source = npm_package("better-sqlite3@7.5.0") / "deps" / "sqlite3" / "sqlite3.c"
        partial = path.with_suffix(".partial")
        fetch("cc", *OPTIONS, "-o", str(partial), str(source), "-lpthread", "-ldl", "-lm")
        move(partial, path)
    return path
