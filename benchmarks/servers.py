"""Servers for one cell, on free ports, each started when the first contestant needs it."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from django.db import connections

from benchmarks.cells import NotRun
from benchmarks.ports import answers, free_port

START_SECONDS = 10
#: Enough for fifty workers with five connections each.
CROWDED = "-c max_connections=500"
#: Counts every statement, and reports the statements of other sessions immediately.
COUNTING = "-c shared_preload_libraries=pg_stat_statements -c pg_stat_statements.track_utility=on"


class Servers(ExitStack):
    """The servers of a cell, for its ``within``: all of them stop when it exits."""

    def __init__(self) -> None:
        super().__init__()
        self._alias = ""
        self._urls: dict[str, str] = {}

    def postgresql(self) -> str:
        """Return the alias of a database with the tables. Its server allows many connections and counts statements."""
        from benchmarks.database import own_database  # requires the models of the measured project

        if not self._alias:
            self._alias = self.enter_context(own_database(f"{CROWDED} {COUNTING}"))
            with connections[self._alias].cursor() as cursor:
                cursor.execute("CREATE EXTENSION pg_stat_statements")
        return self._alias

    def redis(self) -> str:
        return self._url("redis", ["redis-server", "--bind", "127.0.0.1", "--save", "", "--port"])

    def jetstream(self) -> str:
        return self._url("jetstream", ["nats-server", "--jetstream", "--store_dir", ".", "--addr", "127.0.0.1", "-p"])

    def nats(self) -> str:
        """Return the URL of a NATS server without JetStream."""
        return self._url("nats", ["nats-server", "--addr", "127.0.0.1", "-p"])

    def _url(self, kind: str, command: Sequence[str]) -> str:
        if kind not in self._urls:
            port = self._start(command)
            self._urls[kind] = f"{'redis' if kind == 'redis' else 'nats'}://127.0.0.1:{port}"
        return self._urls[kind]

    def _start(self, command: Sequence[str]) -> int:
        program = shutil.which(command[0])
        if program is None:
            raise NotRun(f"There is no {command[0]} on the PATH.")
        folder = self.enter_context(tempfile.TemporaryDirectory(prefix="jobchains-", ignore_cleanup_errors=True))
        port = free_port()
        with Path(folder, "output").open("wb") as output:
            process = subprocess.Popen(
                [program, *command[1:], str(port)], cwd=folder, stdout=output, stderr=subprocess.STDOUT
            )
        self.callback(_end, process)
        if not _begins(port, process):
            raise NotRun(f"{command[0]} did not start: {Path(folder, 'output').read_text()[-500:]}")
        return port


def reached_at(using: str) -> dict[str, str]:
    """Return the environment variables that make another process use this PostgreSQL database."""
    one = connections.databases[using]
    login = quote(one["USER"]) + (f":{quote(one['PASSWORD'])}" if one["PASSWORD"] else "")
    url = f"postgresql://{login}@{quote(one['HOST'], safe='')}:{one['PORT'] or 5432}/{one['NAME']}"
    return {"BENCH_DATABASE_URL": url, "BENCH_DATABASE_NAME": one["NAME"]}


def _begins(port: int, process: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if answers(port):
            return True
        time.sleep(0.05)
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
