"""``--health-port``: liveness, readiness and metrics over HTTP, for process managers, containers and Prometheus."""

import json
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from ipaddress import ip_address
from logging import getLogger
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port, validate_host

from django_jobchains.text.errors import log_error
from django_jobchains.worker.health import Health
from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")

#: The limit of clients served at once. Another client replaces the oldest, which must be slow: a response takes about 1
#: ms.
MAX_CONNECTIONS = 100
#: The limit from the connection to the end of the response, for slow clients.
REQUEST_SECONDS = 2.0
MAX_PORT = 65_535
MAX_HEAD_BYTES = 8 * 1024
#: How often the server checks whether to close.
CHECK_SECONDS = 0.5
#: The wait after a connection that could not be accepted, because the process has too many open files.
ACCEPT_WAIT_SECONDS = 0.1


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Metrics = Callable[[], str]


class HealthServer:
    """Answers ``/live``, ``/ready``, ``/`` and ``/metrics`` from its own thread, until it is closed.

    ``metrics`` returns metrics in Prometheus's text format; None if its client is not installed. Port 0 selects a free
    port. Raises ``ImproperlyConfigured`` if the port cannot be used.
    """

    def __init__(
        self, host: str, port: int, health: Callable[[], Health], *, worker: str, metrics: Metrics | None = None
    ) -> None:
        given: object = port
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MAX_PORT:
            raise ImproperlyConfigured(
                f"The health port {port!r:.100} is not a port: pass a whole number to {MAX_PORT}."
            )
        try:
            listener = _listening_socket(host, port)
        except (OSError, TypeError, ValueError) as error:  # The last two errors are about the host.
            reason = getattr(error, "strerror", None) or error
            raise ImproperlyConfigured(f"The health port {port} on {host} cannot be used: {reason}.") from error
        self.port = int(listener.getsockname()[1])
        self._server = _Server(listener, host, health, metrics)
        self._thread = OwnedThread("health", self._server.step, worker=worker, give_up=_keep_working)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        if self._thread.is_started:
            self._thread.join(time.monotonic() + 2 * CHECK_SECONDS)
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
    """Serves all connections with one selector: clients do not wait for each other, and an idle port uses no CPU."""

    def __init__(
        self, listener: socket.socket, host: str, health: Callable[[], Health], metrics: Metrics | None
    ) -> None:
        self._listener = listener
        self._host = host
        self._health = health
        self._metrics = metrics
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        #: The oldest connection comes first, and also has the first deadline.
        self._connections: dict[socket.socket, _Connection] = {}

    def step(self) -> None:
        """Wait for an event or the next deadline, and serve the connections that are ready."""
        for key, _ in self._selector.select(self._wait_seconds()):
            if key.fileobj is self._listener:
                self._accept()
            elif connection := self._connections.get(key.data):  # None if a new connection has replaced it.
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
        return CHECK_SECONDS if oldest is None else min(max(oldest.deadline - time.monotonic(), 0), CHECK_SECONDS)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # The client has already disconnected.
            return
        except OSError as error:
            logger.debug("A health request was not accepted: %s", error)
            time.sleep(ACCEPT_WAIT_SECONDS)  # The listener stays ready to read, so the loop would spin.
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            self._drop(next(iter(self._connections.values())))
        client.setblocking(False)
        self._connections[client] = _Connection(client)
        self._selector.register(client, selectors.EVENT_READ, data=client)

    def _serve(self, connection: "_Connection") -> None:
        try:
            if connection.answer is None and connection.has_read_head():
                connection.answer = _Request(connection.head, self._host, self._health, self._metrics).answer
                self._selector.modify(connection.socket, selectors.EVENT_WRITE, data=connection.socket)
            if connection.answer is not None and connection.has_written_answer():
                self._drop(connection)
        except BlockingIOError:
            return
        except OSError as error:  # The client disconnected. This must not fill the log.
            logger.debug("A health request got no response: %s", error)
            self._drop(connection)
        except Exception as error:
            log_error(logger, error, "A health request failed: %s")
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        del self._connections[connection.socket]
        self._selector.unregister(connection.socket)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.close()


class _Connection:
    """The received part of a client's request, and the rest of the response."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.deadline = time.monotonic() + REQUEST_SECONDS
        self.head = b""
        self.answer: bytes | None = None

    def has_read_head(self) -> bool:
        """Return whether the head of the request is complete, or nothing more will be received."""
        part = self.socket.recv(MAX_HEAD_BYTES)
        self.head += part
        is_whole = b"\r\n\r\n" in self.head or b"\n\n" in self.head
        return is_whole or not part or len(self.head) >= MAX_HEAD_BYTES

    def has_written_answer(self) -> bool:
        answer = self.answer or b""
        self.answer = answer[self.socket.send(answer) :] if answer else b""
        return not self.answer


class _Request(BaseHTTPRequestHandler):
    """Python's HTTP parser and writer, on bytes in memory instead of a socket."""

    def __init__(self, head: bytes, host: str, health: Callable[[], Health], metrics: Metrics | None) -> None:
        self.rfile = BytesIO(head)
        self.wfile = written = BytesIO()
        self._host = host
        self._health = health
        self._metrics = metrics
        self.handle_one_request()
        self.answer = written.getvalue()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not _is_allowed(self.headers.get("Host", ""), self._host):
            explain = "Use the address of the worker, or add the name to ALLOWED_HOSTS."
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=explain)
        elif path == "/metrics":
            self._send_metrics()
        elif (answer := _answer(path, self._health)) is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="There are /live, /ready, / and /metrics.")
        else:
            is_well, values = answer
            status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, "application/json", json.dumps(values).encode() + b"\n")

    do_HEAD = do_GET  # noqa: N815 - the name is the standard library's

    def _send_metrics(self) -> None:
        if self._metrics is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="Metrics need the extra: django_jobchains[prometheus].")
            return
        try:
            body = self._metrics().encode()
        except Exception as error:
            log_error(logger, error, "The worker's metrics could not be read: %s")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self._send(HTTPStatus.OK, METRICS_TYPE, body)

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "django_jobchains"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because a probe comes every few seconds."""


def _is_allowed(header: str, bound: str) -> bool:
    """Return whether a Host header may name this process: an address, a name without dots, or one that is allowed.

    Otherwise any web site could read the answers in its visitors' browsers, by resolving its own name to our address.
    """
    domain, _ = split_domain_port(header)
    with suppress(ValueError):
        return not header or bool(ip_address(domain.strip("[]")))
    return bool(domain) and ("." not in domain or validate_host(domain, [bound, *settings.ALLOWED_HOSTS]))


def _answer(path: str, check: Callable[[], Health]) -> tuple[bool, dict[str, Any]] | None:
    if path not in ("/live", "/ready", "/"):
        return None
    try:
        health = check()
    except Exception as error:
        log_error(logger, error, "The worker's health could not be checked: %s")
        return False, {"problems": ["the health check failed"]}
    if path == "/":
        return health.is_live and health.is_ready, health.as_json()
    is_well = health.is_live if path == "/live" else health.is_ready
    return is_well, {path[1:]: is_well, "problems": list(health.problems)}
