"""A separate PostgreSQL server with autovacuum on, for cells that depend on the server's settings."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections

from benchmarks.database import NoServer, migrate
from benchmarks.ports import free_port

ALIAS = "own"
#: The user that runs the server, because initdb refuses to run as root.
USER = "postgres"
OPTIONS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c shared_buffers=256MB -c max_wal_size=2GB"


@contextmanager
def own_server(options: str = "") -> Iterator[str]:
    """Yield the alias of a new database with the tables, on a new server. Raises ``NoServer``.

    Both are removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="jobchains-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        _call(folder, "initdb", f"--username={USER}", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8")
        port = free_port()
        _call(folder, "pg_ctl", "start", "--wait", f"--log={folder}/log", "--options", f"-p {port} {OPTIONS} {options}")
        try:
            own = {"NAME": "postgres", "USER": USER, "PASSWORD": "", "HOST": "127.0.0.1", "PORT": str(port)}
            connections.databases[ALIAS] = {**connections.databases["default"], **own}
            migrate(ALIAS)
            yield ALIAS
        finally:
            connections[ALIAS].close()
            del connections[ALIAS], connections.databases[ALIAS]
            _call(folder, "pg_ctl", "stop", "--mode=immediate")


def _call(folder: Path, program: str, *arguments: str) -> None:
    run_as: dict[str, Any] = {"user": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    command = [str(_binaries() / program), f"--pgdata={folder}/data", *arguments]
    # A file, because the server inherits the stream: a pipe would stay open as long as the server runs.
    with tempfile.TemporaryFile("w+") as output:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        done = subprocess.run(command, check=False, cwd=folder, **streams, **run_as)
        output.seek(0)
        if done.returncode:
            raise NoServer(f"{program} exited with {done.returncode}:\n{output.read()}")


def _binaries() -> Path:
    """Return the directory of the server's programs: that on the PATH, or the newest one of the distribution."""
    if found := shutil.which("initdb"):
        return Path(found).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not installed:
        raise NoServer("initdb was not found: install the PostgreSQL server, or skip these cells.")
    return installed[-1].parent
