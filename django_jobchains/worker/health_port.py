"""``--health-port``: liveness and readiness over HTTP, for process managers and containers."""

import json
import socket
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from logging import getLogger
from socketserver import TCPServer
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.worker.health import Health
from django_jobchains.worker.threads import OwnedThread

logger = getLogger("django_jobchains")

#: So many requests are answered at once; a probe comes every few seconds.
THREADS = 3
#: From the connection to the answer, however slowly a client writes and reads.
REQUEST_SECONDS = 2.0
MOST_BYTES = 8 * 1024
#: Between looks at whether to close.
LOOK_SECONDS = 0.5


class HealthPort:
    """Answers ``/live``, ``/ready`` and ``/`` from threads of its own, until it is closed.

    Raises ``ImproperlyConfigured`` when the port cannot be had.
    """

    def __init__(self, host: str, port: int, health: Callable[[], Health], *, worker: str) -> None:
        try:
            self._server = _Server(host, port, health)
        except OSError as error:
            reason = error.strerror or error
            raise ImproperlyConfigured(f"The health port {port} on {host} cannot be used: {reason}.") from error
        self._threads = [
            OwnedThread(f"health-{number}", self._server.handle_request, worker=worker, give_up=_keep_working)
            for number in range(1, THREADS + 1)
        ]

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for thread in self._threads:
            thread.stop()
        deadline = time.monotonic() + LOOK_SECONDS + REQUEST_SECONDS
        for thread in self._threads:
            thread.join(deadline)
        self._server.server_close()


def _keep_working() -> None:
    """A worker without a health port works; its probes fail, which is the right thing to say."""


class _Server(TCPServer):
    allow_reuse_address = True
    request_queue_size = 16
    timeout = LOOK_SECONDS

    def __init__(self, host: str, port: int, health: Callable[[], Health]) -> None:
        self.health = health
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Probe)
        self.socket.setblocking(False)  # several threads wait for one connection: one gets it, the others go on

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours, and must not fill the log."""
        logger.debug("A health request was not answered: %s", sys.exception())


class _Probe(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = BytesIO(_head(self.connection))

    def do_GET(self) -> None:
        answer = _answer(self.path.partition("?")[0], self.server.health)
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
        """A probe every few seconds is no news."""


def _answer(path: str, look: Callable[[], Health]) -> tuple[bool, dict[str, Any]] | None:
    if path not in ("/live", "/ready", "/"):
        return None
    try:
        health = look()
    except Exception:
        logger.exception("The worker's health could not be looked at.")
        return False, {"problems": ["its health could not be looked at"]}
    if path == "/":
        return health.is_live and health.is_ready, health.as_json()
    is_well = health.is_live if path == "/live" else health.is_ready
    return is_well, {path[1:]: is_well, "problems": list(health.problems)}


def _head(connection: socket.socket) -> bytes:
    """A request up to its empty line, as far as it came in time."""
    deadline = time.monotonic() + REQUEST_SECONDS
    received = b""
    while not (b"\r\n\r\n" in received or b"\n\n" in received) and len(received) < MOST_BYTES:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        if not (part := connection.recv(1024)):
            break
        received += part
    connection.settimeout(REQUEST_SECONDS)
    return received
