"""The processes of a peer in its environment: a worker, and clients that run one command and end."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import environments
from benchmarks.peers.catalogue import Peer
from benchmarks.project.settings import SERVER

ROOT = Path(__file__).resolve().parents[2]
LONGEST_SECONDS = 300
STOP_SECONDS = 10


class PeerFailed(Exception):
    """A peer did not do the measured work."""


@dataclass
class Place:
    """What the processes of one run share: a database (for Redis, a prefix) and the file of the handlers' times."""

    peer: Peer
    database: str
    times: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        own = {
            "BENCH_PEER_DATABASE": self.database,
            "BENCH_PEER_URL": SERVER._replace(path=f"/{self.database}").geturl(),
            "BENCH_TIMES": str(self.times),
        }
        inherited = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        self.environment = {**inherited, **environments.variables(self.peer), **own}

    def command(self, *arguments: object) -> list[str]:
        return [*environments.program(self.peer), *map(str, arguments)]

    def call(self, *arguments: object) -> Any:
        """Run one command of the peer's program and return its figures."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            check=False,
        )
        if done.returncode:
            raise PeerFailed(f"{self.peer.name}, {arguments[0]}: {_end_of(done.stderr or done.stdout)}")
        return json.loads(done.stdout.strip().rpartition("\n")[2] or "null")


@dataclass
class Worker:
    """A running worker and all the processes that it has started, which belong to its session."""

    process: "subprocess.Popen[bytes]"
    output: Any

    def check(self) -> None:
        if self.process.poll() is not None:
            raise PeerFailed(f"The worker ended: {self.end_of_output()}")

    def end_of_output(self) -> str:
        self.output.seek(0)
        return _end_of(self.output.read().decode(errors="replace"))

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all its processes on Linux; None on other systems."""
        spent = [_cpu_ticks(stat, self.process.pid) for stat in Path("/proc").glob("[0-9]*/stat")]
        return sum(spent) / os.sysconf("SC_CLK_TCK") if spent else None

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def worker(place: Place) -> Iterator[Worker]:
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(
            place.command("worker"),
            cwd=ROOT,
            env=place.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running = Worker(started, output)
        try:
            yield running
        finally:
            running.stop()


def _cpu_ticks(stat: Path, session: int) -> int:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # the process has just ended
        return 0
    return int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0


def _end_of(text: str) -> str:
    return text.strip()[-1500:]
