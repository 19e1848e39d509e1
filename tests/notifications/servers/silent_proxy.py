"""A TCP proxy whose connections can go silent, as behind a firewall that has forgotten them."""

import socket
import threading
from contextlib import contextmanager, suppress


class SilentProxy:
    """Forwards connections to a local port. After ``silence()`` existing ones carry nothing; new ones work."""

    def __init__(self, port):
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self._ends = []
        self._silent = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    @property
    def port(self):
        return self._server.getsockname()[1]

    @property
    def count(self):
        """The number of connections so far."""
        return len(self._ends) // 2

    def silence(self):
        self._silent |= {*self._ends}

    def close(self):
        for end in (self._server, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._server, *self._ends):
            end.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [client, server]
                for pair in ((client, server), (server, client)):
                    self._threads.append(threading.Thread(target=self._forward, args=pair, name="proxy-link"))
                    self._threads[-1].start()

    def _forward(self, source, target):
        with suppress(OSError):
            while data := source.recv(65_536):
                if source not in self._silent:
                    target.sendall(data)
        if source not in self._silent:
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(port):
    proxy = SilentProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
