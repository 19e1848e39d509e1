"""``--health-port`` answers probes, whatever else comes in."""

import errno
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.worker import health_port
from django_jobchains.worker.health import Health
from django_jobchains.worker.health_port import HealthPort
from django_jobchains.worker.threads import MOST_FAILURES

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
    assert "health could not be checked" in caplog.text


@pytest.mark.parametrize(
    "request_", [b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" * 50, b"GET /live HTTP/9.9\r\n\r\n", b"x" * 100_000]
)
def test_garbage_does_no_harm(port: Port, request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(12):
        with port.open() as connection:
            try:
                connection.sendall(request_)
                connection.shutdown(socket.SHUT_WR)
            except OSError:  # it was closed before all was sent
                continue
    assert port.ask("/live")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("clients", [12, health_port.MAX_CONNECTIONS + 12])
def test_slow_clients_do_not_delay_a_probe(port: Port, monkeypatch: pytest.MonkeyPatch, clients: int) -> None:
    """They have a minute, and a probe is answered before the first of them has used it up."""
    monkeypatch.setattr(health_port, "REQUEST_SECONDS", 60)
    slow = [port.open() for _ in range(clients)]
    try:
        for connection in slow[::2]:
            connection.sendall(b"GET /li")
        assert port.ask("/live")[0] == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_client_that_does_not_read_delays_no_probe(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "REQUEST_SECONDS", 60)
    port.current = replace(DEAD, problems=("jobchains-claims has ended" * 1_000_000,))
    with port.open() as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(20).startswith(b"HTTP/1.0 503")
        port.current = WELL
        assert port.ask("/live")[0] == 200
        with connection.makefile("rb") as answer:  # it may still read the rest
            assert len(answer.read()) > 20_000_000


def test_a_slow_client_is_cut_off(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "REQUEST_SECONDS", 0.2)
    with port.open() as connection:
        connection.sendall(b"GET /li")
        assert connection.recv(1) == b""


def test_a_request_may_arrive_in_pieces(port: Port) -> None:
    with port.open() as connection:
        for part in (b"GET /live HT", b"TP/1.0\r\nHost: a\r", b"\n\r", b"\n"):
            connection.sendall(part)
        assert connection.recv(20).startswith(b"HTTP/1.0 200")


def test_a_port_that_could_not_accept_answers_again(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """More often than its thread may fail."""
    monkeypatch.setattr(health_port, "ACCEPT_WAIT_SECONDS", 0.01)
    accept, failures = socket.socket.accept, iter(range(MOST_FAILURES + 2))

    def fails(listener: socket.socket) -> Any:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fails)
    assert port.ask("/live")[0] == 200
    assert next(failures, None) is None


def test_an_error_of_ours_costs_one_answer(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(health_port, "_answer", None)
        with pytest.raises(http.client.RemoteDisconnected):
            port.ask("/live")
    assert port.ask("/live")[0] == 200


def test_a_port_in_use_is_a_clear_error(port: Port) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"health port {port.port} on 127.0.0.1 cannot be used: Address"):
        HealthPort("127.0.0.1", port.port, port.look, worker="other")


@pytest.mark.parametrize(
    "wrong", [70_000, 65_536, -1, 10**400, "8080", 80.0, True, None], ids=lambda wrong: f"{wrong!r:.10}"
)
def test_a_port_that_cannot_exist_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="is not a port: pass a whole number to 65535"):
        HealthPort("127.0.0.1", wrong, lambda: WELL, worker="mail")


@pytest.mark.parametrize("wrong", ["no host", "x" * 70 + ".example", "nul\0", 5.5], ids=lambda wrong: f"{wrong!r:.10}")
def test_a_host_that_cannot_exist_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="cannot be used"):
        HealthPort(wrong, 0, lambda: WELL, worker="mail")


def test_closing_frees_the_port_and_the_threads() -> None:
    port = Port()
    assert "jobchains-health" in {thread.name for thread in threading.enumerate()}
    slow = port.open()
    port.close()
    slow.close()
    assert not any(thread.name.startswith("jobchains-health") for thread in threading.enumerate())
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port.port))
