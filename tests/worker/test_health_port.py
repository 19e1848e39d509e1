"""``--health-port`` answers probes, whatever else comes in."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.worker import health_port
from django_jobchains.worker.health import Health
from django_jobchains.worker.health_port import HealthPort

WELL = Health("mail:7:a", True, True, (), 10, 3)
UNREADY = Health("mail:7:a", True, False, ("the database was not reached yet",), 10, 3)
DEAD = Health("mail:7:a", False, False, ("jobchains-claims has ended",), 10, 3)


class Port(HealthPort):
    """Of a worker whose health the test chooses."""

    current: Any = WELL

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, self.look, worker="mail")
        self.start()

    def look(self) -> Health:
        if isinstance(self.current, Exception):
            raise self.current
        assert isinstance(self.current, Health)
        return self.current

    def ask(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()


@pytest.mark.parametrize(
    ("health", "live", "ready", "whole"), [(WELL, 200, 200, 200), (UNREADY, 200, 503, 503), (DEAD, 503, 503, 503)]
)
def test_live_and_ready_say_so_by_their_status(port: Port, health: Health, live: int, ready: int, whole: int) -> None:
    port.current = health
    assert port.ask("/live")[0] == live
    status, body = port.ask("/ready?verbose=1")
    assert (status, json.loads(body)) == (ready, {"ready": ready == 200, "problems": list(health.problems)})
    status, body = port.ask("/")
    assert (status, json.loads(body)) == (whole, health.as_json())


def test_only_get_and_head_of_known_paths_are_answered(port: Port) -> None:
    assert port.ask("/ready", "HEAD") == (200, b"")
    assert port.ask("/admin")[0] == 404
    assert port.ask("/live/../etc")[0] == 404
    assert port.ask("/live", "POST")[0] == 501


def test_a_look_that_fails_is_a_503(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    port.current = RuntimeError("a secret")
    status, body = port.ask("/live")
    assert status == 503
    assert b"secret" not in body
    assert "health could not be looked at" in caplog.text


@pytest.mark.parametrize(
    "request_", [b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" * 50, b"GET /live HTTP/9.9\r\n\r\n", b"x" * 100_000]
)
def test_garbage_does_no_harm(port: Port, request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2 * health_port.THREADS):
        with port.open() as connection:
            try:
                connection.sendall(request_)
                connection.shutdown(socket.SHUT_WR)
            except OSError:  # it was closed before all was sent
                continue
    assert port.ask("/live")[0] == 200
    assert capfd.readouterr().err == ""


def test_slow_clients_hold_up_a_probe_for_seconds_at_most(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sends nothing, and others a byte from time to time; there are more of them than threads."""
    monkeypatch.setattr(health_port, "REQUEST_SECONDS", 0.5)
    slow = [port.open() for _ in range(2 * health_port.THREADS)]
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.1):
            for connection in slow[1:]:
                try:
                    connection.sendall(b"G")
                except OSError:
                    return

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        since = time.monotonic()
        assert port.ask("/live")[0] == 200
        assert time.monotonic() - since < 8
    finally:
        over.set()
        dripping.join()
        for connection in slow:
            connection.close()


def test_a_port_in_use_is_a_clear_error(port: Port) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"health port {port.port} on 127.0.0.1 cannot be used: Address"):
        HealthPort("127.0.0.1", port.port, port.look, worker="other")


def test_closing_frees_the_port_and_the_threads() -> None:
    port = Port()
    names = [thread.name for thread in threading.enumerate()]
    assert {f"jobchains-health-{number}" for number in range(1, health_port.THREADS + 1)} <= set(names)
    port.close()
    assert not any(thread.name.startswith("jobchains-health") for thread in threading.enumerate())
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port.port))
