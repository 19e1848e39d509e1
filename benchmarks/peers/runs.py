"""Runs a peer once in a new database, which is dropped at the end."""

import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.cells import Figures
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.processes import LONGEST_SECONDS, PeerFailed, Place, Worker, worker
from benchmarks.project.settings import NAME, SERVER
from benchmarks.seen import percentiles
from benchmarks.server_cost import server_cost

ENQUEUED = 3_000
CALLS = 20
#: The interval of checks for the end of a drain, which limits the precision.
LOOK_SECONDS = 0.01

Connection = psycopg.Connection[Any]


def enqueue(peer: Peer, *, is_quick: bool) -> Figures:
    with _place(peer) as (place, _):
        return _figures(place.call("enqueue", ENQUEUED // 10 if is_quick else ENQUEUED))


def enqueue_many(peer: Peer, *, is_quick: bool) -> Figures:
    with _place(peer) as (place, _):
        return _figures(place.call("enqueue-many", CALLS // 10 if is_quick else CALLS))


def wake_up(peer: Peer, *, is_quick: bool) -> Figures:
    return _latency(peer, "wake-up", peer.samples, is_quick=is_quick)


def chain_latency(peer: Peer, *, is_quick: bool) -> Figures:
    return _latency(peer, "chain-latency", peer.chain_samples, is_quick=is_quick)


def drain(peer: Peer, *, is_quick: bool) -> Figures:
    """Measure from the first start of a handler to the last acknowledgement or, if there are none, the last start."""
    jobs = peer.jobs // 10 if is_quick else peer.jobs
    with _place(peer) as (place, database):
        place.call("fill", jobs)
        database.execute("VACUUM ANALYZE")
        with server_cost(jobs, bare=database) as cost, worker(place) as running:
            _wait_for(running, lambda: _handled(place) > 0)
            cpu_before = running.cpu_seconds()
            _wait_for(running, lambda: _handled(place) >= jobs)
            _wait_for(running, lambda: _is_acknowledged(peer, database))
            acknowledged, cpu_after = time.time(), running.cpu_seconds()
        times = [moment for (moment,) in struct.iter_unpack("<d", place.times.read_bytes())]
    if len(times) != jobs:
        raise PeerFailed(f"{len(times):,} handlers ran for {jobs:,} jobs.")
    ended = acknowledged if peer.pending else max(times)
    figures = {"jobs/s": jobs / (ended - min(times)), **_cpu(cpu_before, cpu_after, jobs)}
    return {**figures, **cost} if peer.pending else figures


def _cpu(before: float | None, after: float | None, jobs: int) -> Figures:
    return {} if before is None or after is None else {"CPU µs/job": (after - before) / jobs * 1e6}


def _latency(peer: Peer, command: str, samples: int, *, is_quick: bool) -> Figures:
    with _place(peer) as (place, _), worker(place) as running:
        try:
            milliseconds = place.call(command, max(samples // 5, 5) if is_quick else samples, peer.gap_seconds)
        except PeerFailed:
            running.check()  # the worker's output explains more than the client's timeout
            raise
    return percentiles(milliseconds)


def _wait_for(running: Worker, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not is_so():
        running.check()
        if time.monotonic() > deadline:
            raise PeerFailed(f"Not finished after {LONGEST_SECONDS} s: {running.end_of_output()}")
        time.sleep(LOOK_SECONDS)


def _handled(place: Place) -> int:
    return place.times.stat().st_size // 8


def _is_acknowledged(peer: Peer, database: Connection) -> bool:
    return not peer.pending or database.execute(sql.SQL(peer.pending)).fetchone() == (0,)


def _figures(figures: dict[str, float]) -> Figures:
    return {metric: float(value) for metric, value in figures.items()}


@contextmanager
def _place(peer: Peer) -> Iterator[tuple[Place, Connection]]:
    """Create an empty database with the tables, and drop it at the end."""
    name = f"{NAME}_{peer.program}"
    with tempfile.TemporaryDirectory() as folder, _database(name) as database:
        place = Place(peer, name, Path(folder, "times"))
        place.times.touch()
        place.call("prepare")
        database.execute("CHECKPOINT")
        try:
            yield place, database
        finally:
            if not peer.pending:
                place.call("prepare")  # empties Redis


@contextmanager
def _database(name: str) -> Iterator[Connection]:
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with psycopg.connect(SERVER.geturl(), autocommit=True) as server:
        server.execute(drop)
        try:
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            with psycopg.connect(SERVER._replace(path=f"/{name}").geturl(), autocommit=True) as database:
                yield database
        finally:
            server.execute(drop)
