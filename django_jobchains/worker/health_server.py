"""``--health-port``: liveness, readiness and metrics over HTTP, for process managers, containers and Prometheus."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from ipaddress import ip_address
from logging import getLogger
from socketserver import ThreadingTCPServer
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port, validate_host

from django_jobchains.text.errors import log_error
from django_jobchains.worker.health import Health

logger = getLogger("django_jobchains")

#: The limit of connected clients. Another client replaces the oldest, which must be slow: a response takes about 1 ms.
MAX_CONNECTIONS = 100
#: The limit from the connection to the end of the response, for slow clients.
REQUEST_SECONDS = 2.0
MAX_PORT = 65_535
MAX_HEAD_BYTES = 8 * 1024
#: How often the server checks for slow clients, and whether to close.
CHECK_SECONDS = 0.5
#: The wait after a connection that could not be accepted, because the process has too many open files.
ACCEPT_WAIT_SECONDS = 0.1


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HealthServer(ThreadingTCPServer):
    """Answers ``/live``, ``/ready``, ``/`` and ``/metrics``, each client on its own thread, until it is closed.

    ``metrics`` returns metrics in Prometheus's text format; None if its client is not installed. Port 0 selects a free
    port. Raises ``ImproperlyConfigured`` if the port cannot be used.
    """

    allow_reuse_address = daemon_threads = True
    block_on_close = False
    request_queue_size = socket.SOMAXCONN

    def __init__(
        self, host: str, port: int, health: Callable[[], Health], *, metrics: Callable[[], str] | None = None
    ) -> None:
        given: object = port
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MAX_PORT:
            raise ImproperlyConfigured(
                f"The health port {port!r:.100} is not a port: pass a whole number to {MAX_PORT}."
            )
        self.host = host
        self.check_health = health
        self.read_metrics = metrics
        #: Held during a scrape, because the reader of Prometheus's client cannot serve two scrapes at the same time.
        self.metrics_lock = threading.Lock()
        #: The clients that are served, the oldest first, with the monotonic time when they are cut off.
        self._deadlines: dict[Any, float] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self.serve_forever, args=[CHECK_SECONDS], name="jobchains-health", daemon=True
        )
        try:
            self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            super().__init__((host, port), _Request)
        except (OSError, TypeError, ValueError) as error:  # The last two errors are about the host.
            reason = getattr(error, "strerror", None) or error
            raise ImproperlyConfigured(f"The health port {port} on {host} cannot be used: {reason}.") from error
        self.port = int(self.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.ident is not None:
            self.shutdown()
        with self._changed:
            for client in list(self._deadlines):
                self._cut_off(client)
        self.server_close()

    # Called by the base class

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            logger.debug("A health request was not accepted: %s", error)
            if not isinstance(error, BlockingIOError | ConnectionError):  # Otherwise the client has disconnected.
                time.sleep(ACCEPT_WAIT_SECONDS)  # The socket stays ready to read, so the loop would spin.
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client on its own thread. If there are too many, it replaces the oldest."""
        with self._changed:
            if len(self._deadlines) >= MAX_CONNECTIONS:
                self._cut_off(next(iter(self._deadlines)))
                self._changed.wait_for(lambda: len(self._deadlines) < MAX_CONNECTIONS, ACCEPT_WAIT_SECONDS)
            is_full = len(self._deadlines) >= MAX_CONNECTIONS
            if not is_full:
                self._deadlines[request] = time.monotonic() + REQUEST_SECONDS
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Cut off slow clients. A limit for each read or write would not limit clients that send byte by byte."""
        now = time.monotonic()
        with self._changed:
            for client in [client for client, deadline in self._deadlines.items() if deadline <= now]:
                self._cut_off(client)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:  # From now on, the socket is not shut down from another thread.
            self._deadlines.pop(request, None)
            self._changed.notify()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):  # The client disconnected. This must not fill the log.
            logger.debug("A health request got no response: %s", error)
        elif error is not None:
            log_error(logger, error, "A health request failed: %s")

    def _cut_off(self, client: Any) -> None:
        """End the reads and writes of a client's thread, which then closes the socket."""
        self._deadlines[client] = self._deadlines.pop(client)  # If its thread does not end, another one is next.
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: HealthServer

    def setup(self) -> None:
        super().setup()
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) < MAX_HEAD_BYTES:
            part = self.connection.recv(MAX_HEAD_BYTES)
            if not part:
                break
            head += part
        self.rfile = BytesIO(head)  # Read from memory, because of the limit.

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not _is_allowed(self.headers.get("Host", ""), self.server.host):
            explain = "Use the address of the worker, or add the name to ALLOWED_HOSTS."
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, explain=explain)
        elif path == "/metrics":
            self._send_metrics()
        elif (answer := _answer(path, self.server.check_health)) is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="There are /live, /ready, / and /metrics.")
        else:
            is_well, values = answer
            status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, "application/json", json.dumps(values).encode() + b"\n")

    do_HEAD = do_GET  # noqa: N815 - the name is the standard library's

    def _send_metrics(self) -> None:
        if self.server.read_metrics is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="Metrics need the extra: django_jobchains[prometheus].")
            return
        try:
            with self.server.metrics_lock:
                body = self.server.read_metrics().encode()
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
