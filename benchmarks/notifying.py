"""Each notifier with idle workers and single jobs: the time until a handler runs, and the number of statements.

Workers and enqueuers are separate processes, which take the notifier and the database from their environment. "none" is
not measured: without a notifier a job waits for the next poll, half of ``POLL_SECONDS`` on average.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.cells import Cell, Figures, NotRun, Run, Target
from benchmarks.counting import FLUSH_SECONDS
from benchmarks.crowd import crowd, waiting
from benchmarks.database import empty, settle
from benchmarks.notifiers import COUNTLESS, IN_PROCESS, OTHERS, POSTGRESQL, SQLITE, Environment, Way
from benchmarks.seen import Load, Seen, figures
from benchmarks.servers import Servers, reached_at
from benchmarks.waker import TYPE
from benchmarks.workers import (
    LONGEST_SECONDS,
    ROOT,
    WorkerFailed,
    bare_worker_command,
    call_command,
    own_environment,
    worker_command,
)
from django_jobchains.models import WorkerPresence

BARE = "bare LISTEN"
#: The time until workers that have registered their presence also listen.
SUBSCRIBE_SECONDS = 1.0
#: The time until each worker has learned about the others from a heartbeat, so that they can take turns.
ACQUAINTED_SECONDS = 12.0
HERD_GAP_SECONDS = 0.5
MANY, HERD = 20, 50


class Idle(NamedTuple):
    """The number of idle workers, and the load they get."""

    workers: int
    load: Load
    settle_seconds: float = ACQUAINTED_SECONDS


def cells(*, is_quick: bool) -> Iterator[Cell]:
    load = Load(samples=20 if is_quick else 500)
    one = Idle(1, load, SUBSCRIBE_SECONDS)
    many = Idle(3, load, SUBSCRIBE_SECONDS) if is_quick else Idle(MANY, load)
    for number, idle in ((1, one), (MANY, many)):
        yield _on_postgresql(f"notifying-{number}", idle, inside=number == 1)
        yield _on_sqlite(f"sqlite-notifying-{number}", idle)
    quick = Idle(4, Load(4, 0.2, idle_gaps=2, flush_seconds=0), SUBSCRIBE_SECONDS)
    yield _herd(quick if is_quick else Idle(HERD, Load(60, HERD_GAP_SECONDS, 20, FLUSH_SECONDS)))


def _on_postgresql(name: str, idle: Idle, *, inside: bool) -> Cell:
    servers = Servers()
    ways: dict[str, Run] = {way: partial(_ours, servers, each, idle) for way, each in OTHERS.items()}
    if inside:
        ways["in-process"] = partial(_in_process, servers, idle)
    return Cell(
        name,
        _title(idle),
        {"ours": partial(_ours, servers, POSTGRESQL, idle), **_floors(servers, idle)},
        (Target("p50 ms", at_most=2, of_floor=BARE), Target("p95 ms", at_most=2, of_floor=BARE)),
        ways=ways,
        max_rounds=2 if idle.workers == 1 else 1,
        within=lambda: servers,
    )


def _on_sqlite(name: str, idle: Idle) -> Cell:
    run = partial(_measure, "sqlite", "ours", idle, SQLITE.environment_for(Servers()))
    return Cell(name, f"SQLite: {_title(idle)}", {"ours": run}, max_rounds=2)


def _herd(idle: Idle) -> Cell:
    servers = Servers()
    ways = {"ours, all workers wake up": COUNTLESS, **OTHERS}
    return Cell(
        "herd",
        f"{_title(idle)}, {idle.load.gap_seconds} s apart",
        {"ours": partial(_ours, servers, POSTGRESQL, idle), BARE: partial(_floor, servers, "listen", idle)},
        ways={way: partial(_ours, servers, each, idle) for way, each in ways.items()},
        max_rounds=1,
        within=lambda: servers,
    )


def _title(idle: Idle) -> str:
    processes = "1 idle worker process" if idle.workers == 1 else f"{idle.workers} idle worker processes"
    samples = f"{idle.load.samples} samples"
    return f"from the commit of the enqueue to the first line of the handler, {processes} of one slot, {samples}"


def _floors(servers: Servers, idle: Idle) -> dict[str, Run]:
    names = {"listen": BARE, "redis": "redis-py SUBSCRIBE", "nats": "nats-py subscribe"}
    return {name: partial(_floor, servers, signals, idle) for signals, name in names.items()}


# One run


def _ours(servers: Servers, way: Way, idle: Idle) -> Figures:
    environment = {**way.environment_for(servers), **reached_at(servers.postgresql())}
    return _measure(servers.postgresql(), "ours", idle, environment)


def _in_process(servers: Servers, idle: Idle) -> Figures:
    """Run the worker in the process that enqueues."""
    environment = {**IN_PROCESS.environment_for(servers), **reached_at(servers.postgresql())}
    return _measure(servers.postgresql(), "ours", idle, environment, inside=True)


def _floor(servers: Servers, signals: str, idle: Idle) -> Figures:
    environment = {**_server(servers, signals), **reached_at(servers.postgresql())}
    return _measure(servers.postgresql(), signals, idle, environment)


def _server(servers: Servers, signals: str) -> Environment:
    if signals == "listen":
        return {}
    if find_spec(signals) is None:
        raise NotRun(f"The driver is not installed: pip install {signals}")
    return {"BENCH_REDIS": servers.redis()} if signals == "redis" else {"BENCH_NATS": servers.nats()}


def _measure(using: str, signals: str, idle: Idle, environment: Environment, *, inside: bool = False) -> Figures:
    """Measure one run. ``using`` is an alias of this process; child processes call a PostgreSQL database "default"."""
    empty(using)
    settle(using)
    database = "sqlite" if using == "sqlite" else "default"
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        times.touch()
        environment = {**environment, "BENCH_TIMES": str(times)}
        with nullcontext() if inside else _workers(using, database, signals, idle, environment):
            return figures(_wake(signals, database, idle.load, environment, inside=inside))


@contextmanager
def _workers(using: str, database: str, signals: str, idle: Idle, environment: Environment) -> Iterator[None]:
    if signals != "ours":
        with waiting(bare_worker_command(TYPE, signals), idle.workers, environment):
            yield
        return
    present = WorkerPresence.objects.using(using)
    present.all().delete()
    with crowd(worker_command([TYPE], database, 1), idle.workers, present.all().count, environment):
        time.sleep(idle.settle_seconds)
        yield


def _wake(signals: str, database: str, load: Load, environment: Environment, *, inside: bool) -> Seen:
    command = call_command("waker.wake", load=asdict(load), signals=signals, using=database, inside=inside)
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**own_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if done.returncode:
        raise WorkerFailed(done.stderr[-2000:])
    seen: Seen = json.loads(done.stdout.strip().rpartition("\n")[2])
    return seen
