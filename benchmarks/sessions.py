"""Sessions that listen and discard what they receive, so that the cells measure sending, not Python's listening."""

import signal
import socket
import sys
from collections.abc import Callable
from os import environ
from selectors import EVENT_READ, DefaultSelector
from typing import Any
from urllib.parse import urlsplit

from benchmarks.crowd import report_ready
from benchmarks.database import connect
from django_jobchains.notifications.postgres import CHANNELS

AT_ONCE = 65_536

#: A function that receives the pending messages and discards them.
Drop = Callable[[], object]


def listen(server: str, number: int) -> None:
    """Listen with ``number`` sessions in one thread, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    with DefaultSelector() as selector:
        for _ in range(number):
            session, drop = SESSIONS[server]()
            selector.register(session, EVENT_READ, drop)
        report_ready()
        while True:
            for key, _ in selector.select():
                key.data()


def _postgresql() -> tuple[Any, Drop]:
    bare = connect()
    for channel in CHANNELS.values():
        bare.execute(f"LISTEN {channel}")

    def drop() -> None:
        bare.pgconn.consume_input()
        while bare.pgconn.notifies():
            pass

    return bare, drop


def _redis() -> tuple[Any, Drop]:
    """Subscribe. Only the first reply is waited for."""
    connection = _connected(environ["BENCH_REDIS"])
    connection.sendall(b"PSUBSCRIBE *\r\n")
    connection.recv(AT_ONCE)
    return connection, lambda: connection.recv(AT_ONCE)


def _nats() -> tuple[Any, Drop]:
    """Reply to PING, because the server disconnects clients that do not."""
    connection = _connected(environ["BENCH_NATS"])
    connection.sendall(b'CONNECT {"verbose": false}\r\nSUB > 1\r\nPING\r\n')
    received = b""
    while b"PONG" not in received:
        received += connection.recv(AT_ONCE)

    def drop() -> None:
        if b"PING\r\n" in connection.recv(AT_ONCE):
            connection.sendall(b"PONG\r\n")

    return connection, drop


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0))


SESSIONS: dict[str, Callable[[], tuple[Any, Drop]]] = {"postgresql": _postgresql, "redis": _redis, "nats": _nats}
