"""``--health-port`` responds to probes, whatever other requests arrive."""

import errno
import http.client
import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.worker import health_server
from django_jobchains.worker.health import Health
from django_jobchains.worker.health_server import MAX_CONNECTIONS, HealthServer
from tests.support.waiting import until

WELL = Health("mail:7:a", True, True, (), 10, 3)
UNREADY = Health("mail:7:a", True, False, ("the database has not been reached yet",), 10, 3)
DEAD = Health("mail:7:a", False, False, ("jobchains-claim-loop has ended",), 10, 3)


class Port(HealthServer):
    """The health port of a worker whose health the test sets."""

    current = WELL

    def __init__(self, host="127.0.0.1"):
        self.scraped, self.may_scrape = threading.Event(), threading.Event()
        super().__init__(host, 0, self.health, metrics=self.metrics)
        self.start()

    def health(self):
        if isinstance(self.current, Exception):
            raise self.current
        return self.current

    def metrics(self):
        self.scraped.set()
        assert self.may_scrape.wait(10)
        return "jobchains_up 1"

    def ask(self, path, method="GET", host=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers={} if host is None else {"Host": host})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def open(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture(autouse=True)
def _closed_at_once(monkeypatch):
    monkeypatch.setattr(health_server, "CHECK_SECONDS", 0.02)


@pytest.fixture
def port():
    port = Port()
    yield port
    port.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 0.2)


@pytest.fixture
def patient(monkeypatch):
    """A probe gets its response before the first slow client times out."""
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 60)


@pytest.mark.parametrize(
    ("health", "live", "ready", "whole"), [(WELL, 200, 200, 200), (UNREADY, 200, 503, 503), (DEAD, 503, 503, 503)]
)
def test_status_codes_of_live_and_ready(port, health, live, ready, whole):
    port.current = health
    assert port.ask("/live")[0] == live
    status, body = port.ask("/ready?verbose=1")
    assert (status, json.loads(body)) == (ready, {"ready": ready == 200, "problems": list(health.problems)})
    status, body = port.ask("/")
    assert (status, json.loads(body)) == (whole, health.as_json())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("HEAD", "/ready", 200), ("GET", "/admin", 404), ("GET", "/live/../etc", 404), ("POST", "/live", 501)],
)
def test_only_get_and_head_of_known_paths_are_allowed(port, method, path, status):
    found, body = port.ask(path, method)
    assert found == status
    assert not body or status != 200


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("127.0.0.1:8010", True),
        ("10.1.2.3:8010", True),  # the address of a pod
        ("[::1]:8010", True),
        ("localhost", True),
        ("LOCALHOST:8010", True),
        ("worker:8010", True),  # the name of a service
        ("worker.shop.example", True),  # in ALLOWED_HOSTS
        ("", True),
        ("evil.example", False),
        ("evil.example:8010", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evil example", False),
    ],
)
def test_a_name_that_others_can_register_is_refused(port, settings, host, is_allowed):
    """A web site could let its own name resolve to the worker, and read the answers in its visitors' browsers."""
    settings.ALLOWED_HOSTS = ["worker.shop.example"]
    port.may_scrape.set()
    for path in ("/live", "/", "/metrics"):
        status, body = port.ask(path, host=host)
        assert (status != 421) is is_allowed
        assert is_allowed or (b"ALLOWED_HOSTS" in body and b"mail:7:a" not in body)


def test_the_name_of_the_health_host_is_allowed(monkeypatch, settings):
    settings.ALLOWED_HOSTS = []
    bind = socket.socket.bind
    monkeypatch.setattr(socket.socket, "bind", lambda self, address: bind(self, ("127.0.0.1", address[1])))
    port = Port("worker.internal.example")
    try:
        assert port.ask("/live", host="worker.internal.example")[0] == 200
        assert port.ask("/live", host="other.internal.example")[0] == 421
    finally:
        port.close()


def test_failed_check_is_a_503(port, caplog):
    port.current = RuntimeError("a secret")
    status, body = port.ask("/live")
    assert status == 503
    assert b"secret" not in body
    assert "health could not be checked" in caplog.text


@pytest.mark.parametrize(
    "parts", [(b"GET /live HTTP/1.0\r\n\r\n",), (b"GET /live HT", b"TP/1.0\r\nHost: a\r", b"\n\r", b"\n")]
)
def test_requests_in_pieces_and_without_a_host_are_answered(port, parts):
    with port.open() as connection:
        for part in parts:
            connection.sendall(part)
        assert connection.recv(20).startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize(
    "request_", [b"", b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" * 50, b"GET /live HTTP/9.9\r\n\r\n", b"x" * 100_000]
)
def test_invalid_requests_do_not_affect_probes(port, request_, capfd):
    for _ in range(12):
        with port.open() as connection, suppress(OSError):  # the server may close it early
            connection.sendall(request_)
            connection.shutdown(socket.SHUT_WR)
    assert port.ask("/live")[0] == 200
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("clients", [12, MAX_CONNECTIONS + 12])
def test_slow_clients_do_not_delay_a_probe(port, clients):
    slow = [port.open() for _ in range(clients)]
    try:
        for connection in slow[::2]:
            connection.sendall(b"GET /li")
        assert port.ask("/live")[0] == 200
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.usefixtures("patient")
def test_client_that_does_not_read_does_not_delay_a_probe(port):
    port.current = replace(DEAD, problems=("jobchains-claim-loop has ended" * 1_000_000,))
    with port.open() as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(20).startswith(b"HTTP/1.0 503")
        port.current = WELL
        assert port.ask("/live")[0] == 200
        with connection.makefile("rb") as response:  # the slow client may still read the rest
            assert len(response.read()) > 20_000_000


def test_slow_scrape_does_not_delay_a_probe(port):
    with port.open() as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert port.scraped.wait(10)
        assert port.ask("/live")[0] == 200
        port.may_scrape.set()
        with connection.makefile("rb") as response:
            assert response.read().endswith(b"jobchains_up 1")


@pytest.mark.usefixtures("impatient")
def test_slow_client_is_cut_off(port):
    with port.open() as connection, suppress(ConnectionError):  # on a busy machine, before it sends anything
        connection.sendall(b"GET /li")
        assert connection.recv(1) == b""


@pytest.mark.usefixtures("impatient")
def test_client_that_sends_byte_by_byte_is_cut_off(port):
    with port.open() as connection, pytest.raises(ConnectionError):
        for _ in range(1_000):
            connection.sendall(b"x")
            time.sleep(0.01)
    until(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))


def test_port_recovers_after_it_could_not_accept_connections(port, monkeypatch):
    monkeypatch.setattr(health_server, "ACCEPT_WAIT_SECONDS", 0.01)
    accept, failures = socket.socket.accept, iter(range(12))

    def failing_accept(listener):
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing_accept)
    assert port.ask("/live")[0] == 200
    assert next(failures, None) is None


def test_internal_error_affects_one_request(port, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(health_server, "_answer", None)
        with pytest.raises(http.client.RemoteDisconnected):
            port.ask("/live")
    assert port.ask("/live")[0] == 200


def test_unusable_addresses_are_refused(port):
    for number in (65_536, -1, 10**400, "8080", 80.0, True, None):
        with pytest.raises(ImproperlyConfigured, match="is not a port: pass a whole number to 65535"):
            HealthServer("127.0.0.1", number, port.health)
    for host in ("no host", "x" * 70 + ".example", "nul\0", 5.5):
        with pytest.raises(ImproperlyConfigured, match="cannot be used"):
            HealthServer(host, 0, port.health)
    with pytest.raises(ImproperlyConfigured, match=f"health port {port.port} on 127.0.0.1 cannot be used: Address"):
        HealthServer("127.0.0.1", port.port, port.health)


def test_closing_frees_the_port_and_the_threads():
    port = Port()
    assert "jobchains-health" in {thread.name for thread in threading.enumerate()}
    slow = port.open()
    port.close()
    slow.close()
    until(lambda: not any(thread.name.startswith("jobchains-health") for thread in threading.enumerate()))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port.port))
