"""``--health-port``: liveness and readiness over HTTP, for process managers and containers."""

import json
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from logging import getLogger
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.texts import log_error
from django_jobchains.worker.health import Health
from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")

#: Clients served at once. One more takes the place of the one that was accepted first, which is a slow one: an answer
#: takes a millisecond.
MAX_CONNECTIONS = 100
#: From the connection to the end of the answer, however slowly a client writes and reads.
REQUEST_SECONDS = 2.0
MAX_PORT = 65_535
MAX_HEAD_BYTES = 8 * 1024
#: Between checks whether to close.
LOOK_SECONDS = 0.5
#: After a connection that could not be accepted, because the process has too many open files.
ACCEPT_WAIT_SECONDS = 0.1


class HealthPort:
    """Answers ``/live``, ``/ready`` and ``/`` from its own thread, until it is closed.

    Port 0 is any free one. Raises ``ImproperlyConfigured`` when the port cannot be had.
    """

    def __init__(self, host: str, port: int, health: Callable[[], Health], *, worker: str) -> None:
        given: object = port
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MAX_PORT:
            raise ImproperlyConfigured(
                f"The health port {port!r:.100} is not a port: pass a whole number to {MAX_PORT}."
            )
        try:
            listener = _listening_socket(host, port)
        except (OSError, TypeError, ValueError) as error:  # the last two are about the host
            reason = getattr(error, "strerror", None) or error
            raise ImproperlyConfigured(f"The health port {port} on {host} cannot be used: {reason}.") from error
        self.port = int(listener.getsockname()[1])
        self._server = _Server(listener, health)
        self._thread = OwnedThread("health", self._server.step, worker=worker, give_up=_keep_working)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        if self._thread.is_started:
            self._thread.join(time.monotonic() + 2 * LOOK_SECONDS)
        self._server.close()


def _keep_working() -> None:
    """Do nothing. The worker continues without its health port, and its probes fail."""


def _listening_socket(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(socket.SOMAXCONN)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class _Server:
    """One selector over all connections: no client waits for another one, and an idle port sleeps."""

    def __init__(self, listener: socket.socket, health: Callable[[], Health]) -> None:
        self._listener = listener
        self._health = health
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        #: The oldest first, which is also the one whose time is over first.
        self._connections: dict[socket.socket, _Connection] = {}

    def step(self) -> None:
        """Wait for one event, or until a connection's time is over, and serve all that are ready."""
        for key, _ in self._selector.select(self._wait_seconds()):
            if key.fileobj is self._listener:
                self._accept()
            elif connection := self._connections.get(key.data):  # unless it gave way to a new one
                self._serve(connection)
        now = time.monotonic()
        for connection in [each for each in self._connections.values() if each.deadline <= now]:
            self._drop(connection)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _wait_seconds(self) -> float:
        oldest = next(iter(self._connections.values()), None)
        return LOOK_SECONDS if oldest is None else min(max(oldest.deadline - time.monotonic(), 0), LOOK_SECONDS)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has gone already
            return
        except OSError as error:
            logger.debug("A health request was not accepted: %s", error)
            time.sleep(ACCEPT_WAIT_SECONDS)  # the listener stays ready to read: the loop would spin
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._drop(next(iter(self._connections.values())))
        client.setblocking(False)
        self._connections[client] = _Connection(client)
        self._selector.register(client, selectors.EVENT_READ, data=client)

    def _serve(self, connection: "_Connection") -> None:
        try:
            if connection.answer is None and connection.has_read_head():
                connection.answer = _Request(connection.head, self._health).answer
                self._selector.modify(connection.socket, selectors.EVENT_WRITE, data=connection.socket)
            if connection.answer is not None and connection.has_written_answer():
                self._drop(connection)
        except BlockingIOError:
            return
        except OSError as error:  # the client went away, which must not fill the log
            logger.debug("A health request was not answered: %s", error)
            self._drop(connection)
        except Exception as error:
            log_error(logger, error, "A health request could not be answered: %s")
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        del self._connections[connection.socket]
        self._selector.unregister(connection.socket)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.close()


class _Connection:
    """A client's request as far as it has arrived, and the rest of the answer to it."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.deadline = time.monotonic() + REQUEST_SECONDS
        self.head = b""
        self.answer: bytes | None = None

    def has_read_head(self) -> bool:
        """Return whether the head of the request is complete, or no more of it will come."""
        part = self.socket.recv(MAX_HEAD_BYTES)
        self.head += part
        is_whole = b"\r\n\r\n" in self.head or b"\n\n" in self.head
        return is_whole or not part or len(self.head) >= MAX_HEAD_BYTES

    def has_written_answer(self) -> bool:
        answer = self.answer or b""
        self.answer = answer[self.socket.send(answer) :] if answer else b""
        return not self.answer


class _Request(BaseHTTPRequestHandler):
    """Python's parser and writer of HTTP, on bytes in memory instead of a socket that it would wait for."""

    def __init__(self, head: bytes, health: Callable[[], Health]) -> None:
        self.rfile = BytesIO(head)
        self.wfile = written = BytesIO()
        self._health = health
        self.handle_one_request()
        self.answer = written.getvalue()

    def do_GET(self) -> None:
        answer = _answer(self.path.partition("?")[0], self._health)
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="There are /live, /ready and /.")
        else:
            self._send(*answer)

    do_HEAD = do_GET  # noqa: N815 - the name is the standard library's

    def _send(self, is_well: bool, values: dict[str, Any]) -> None:
        body = json.dumps(values).encode() + b"\n"
        self.send_response(HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "django_jobchains"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because a probe comes every few seconds."""


def _answer(path: str, look: Callable[[], Health]) -> tuple[bool, dict[str, Any]] | None:
    if path not in ("/live", "/ready", "/"):
        return None
    try:
        health = look()
    except Exception as error:
        log_error(logger, error, "The worker's health could not be checked: %s")
        return False, {"problems": ["its health could not be looked at"]}
    if path == "/":
        return health.is_live and health.is_ready, health.as_json()
    is_well = health.is_live if path == "/live" else health.is_ready
    return is_well, {path[1:]: is_well, "problems": list(health.problems)}
