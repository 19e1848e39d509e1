"""A proxy for PostgreSQL that can cut connections at any byte, or stop forwarding."""

import os
import socket
import struct
import threading
from collections import Counter
from contextlib import suppress

import pytest
from django.db import connection

#: What happens to a COMMIT: it is forwarded, it is lost with its connection, or its response is lost.

#: First messages that ask for encryption. They are refused, because the proxy reads the messages.
ENCRYPTION_REQUESTS = (80877103, 80877104)
CHUNK = 65_536


class Proxy:
    """Forwards connections to a server. Change its public attributes at any time."""

    def __init__(self, connect, host="127.0.0.1"):
        self._connect = connect
        self._host = host
        self._server = socket.create_server((host, 0))
        self._links = []
        #: What happens to the next COMMIT.
        self.fate = lambda: "passes"
        self.fates = Counter()
        #: The number of bytes in either direction after which the next connection is cut. None: never.
        self.lifetime = lambda: None
        #: While this is cleared, nothing is forwarded and neither end is notified, but connections are still accepted.
        self.flowing = threading.Event()
        self.flowing.set()
        self._thread = threading.Thread(target=self._accept, name="proxy")
        self._thread.start()

    @property
    def port(self):
        return self._server.getsockname()[1]

    @property
    def url(self):
        settings = connection.settings_dict
        return f"postgresql://{settings['USER']}:{settings['PASSWORD']}@{self._host}:{self.port}/"

    def cut_all(self):
        for link in self._links:
            link.cut()

    def forget_all(self):
        """Act like a server that died: its sessions have ended, and a working network notifies the client once."""
        for link in self._links:
            link.forget()

    def close(self):
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        self.cut_all()
        self.flowing.set()
        for link in self._links:
            link.join()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                client.close()
            else:
                self._links = [link for link in self._links if link.is_open]
                self._links.append(Link(self, client, server))


class Link:
    """A connection, forwarded by two threads."""

    def __init__(self, proxy, client, server):
        self._proxy = proxy
        self._client, self._server = client, server
        self._left = proxy.lifetime()
        self._is_answer_lost = self._is_forgotten = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) if end.family != socket.AF_UNIX else None
        self._threads = [
            threading.Thread(target=self._run, args=(forward,), name="proxy-link")
            for forward in (self._forward_statements, self._forward_answers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_open(self):
        return any(thread.is_alive() for thread in self._threads)

    def cut(self):
        """Cut the connection, and notify both ends at once."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def forget(self):
        """Close both ends with a reset, which is not sent again, unlike a normal end."""
        self._is_forgotten = True
        for end in (self._client, self._server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)

    def join(self):
        for thread in self._threads:
            thread.join()

    def _run(self, forward):
        with suppress(OSError):
            forward()
        if not self._is_forgotten:
            self.cut()
        with suppress(OSError):  # each thread closes the end it reads
            (self._client if forward == self._forward_statements else self._server).close()

    def _forward_statements(self):
        if not self._forward_beginning():
            return
        for message in self._messages():
            if not _is_commit(message):
                self._send(self._server, message)
            elif not self._forward_commit(message):
                return

    def _forward_commit(self, message):
        fate = self._proxy.fate()
        self._proxy.fates[fate] += 1
        self._is_answer_lost = fate == "its answer is lost"
        if fate != "is lost":
            self._send(self._server, message)
        return fate != "is lost"

    def _forward_answers(self):
        while data := self._server.recv(CHUNK):
            if self._is_answer_lost:
                return
            self._send(self._client, data)

    def _forward_beginning(self):
        """Read the messages before the session, which have no type."""
        while header := self._read(8):
            length, code = struct.unpack("!II", header)
            if code not in ENCRYPTION_REQUESTS:
                self._send(self._server, header + self._read(length - 8))
                return True
            self._client.sendall(b"N")
        return False

    def _messages(self):
        while header := self._read(5):
            yield header + self._read(struct.unpack("!I", header[1:])[0] - 4)

    def _read(self, size):
        """Return this many bytes from the client, or none if it has closed the connection."""
        read = bytearray()
        while len(read) < size:
            if not (data := self._client.recv(size - len(read))):
                return b""
            read += data
        return bytes(read)

    def _send(self, end, data):
        """Send the data, or the part of it that may be sent before the connection is cut."""
        self._proxy.flowing.wait()
        if self._left is None:
            end.sendall(data)
            return
        end.sendall(data[: self._left])
        self._left -= min(len(data), self._left)
        if not self._left:
            raise ConnectionResetError


def _is_commit(message):
    kind, body = message[:1], message[5:]
    if kind == b"P":  # Parse: a name, and the statement
        return body.split(b"\0")[1] == b"COMMIT"
    return kind == b"Q" and body.endswith(b"COMMIT\0")  # alone, or after the statement that completes a job


def connect_to_database():
    """Return a new connection to the server that the tests use."""
    settings = connection.settings_dict
    host, port = settings["HOST"], settings["PORT"] or "5432"
    if host and not host.startswith("/"):
        return socket.create_connection((host, int(port)), timeout=None)
    end = socket.socket(socket.AF_UNIX)
    end.connect(os.path.join(host or "/var/run/postgresql", f".s.PGSQL.{port}"))  # noqa: PTH118 - a socket's name
    return end


@pytest.fixture
def proxy(transactional_db):
    proxy = Proxy(connect_to_database)
    try:
        yield proxy
    finally:
        proxy.close()


def by_chance(chance, share, fate):
    return lambda: fate if chance.random() < share else "passes"
