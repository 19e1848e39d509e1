"""SQLite 3.37, the oldest that the newest Django takes, in the place of the library Python would load."""

import platform
import subprocess
from pathlib import Path
from zlib import crc32

from tests.matrix import CACHE, Unavailable
from tests.matrix.commands import fetch
from tests.matrix.downloads import npm_package

VERSION = "3.37.2"
OPTIONS = (
    "-O1",
    "-fPIC",
    "-shared",
    "-DSQLITE_THREADSAFE=1",
    "-DSQLITE_ENABLE_JSON1",
    "-DHAVE_USLEEP=1",  # without it, who finds the database busy sleeps for whole seconds
    "-Wl,-soname,libsqlite3.so.0",
)


def with_sqlite_3_37(python: str) -> dict[str, str]:
    """The environment variables with which that Python loads it."""
    if platform.system() != "Linux":
        raise Unavailable("SQLite 3.37 is put under Python on Linux only.")
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
        partial.rename(path)
    return path
