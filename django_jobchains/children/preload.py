"""This process's side of the preload process: one for all pools, started on first use."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.apps import apps

LENGTH = struct.Struct("!I")
#: How long the preload process may take to read a command. If it takes longer, it is replaced.
MAX_COMMAND_SECONDS = 10.0
#: How long the preload process may take to end, and to kill its children when this process exits.
MAX_EXIT_SECONDS = 2.0

CODE = """\
import json, os, sys
path, python_path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
if python_path is not None:
    os.environ["PYTHONPATH"] = python_path
from django_jobchains.children.preload_process import main
main(*arguments)
"""


class Preload:
    """Starts the preload process, and sends commands to it. Raises ``OSError`` if it cannot be started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = 0
        self._control, control = socket.socketpair()
        self._control.settimeout(MAX_COMMAND_SECONDS)
        try:
            with control:
                self._process = self._start(control.fileno())
        except BaseException:
            self._control.close()
            raise

    def _start(self, control: int) -> "subprocess.Popen[bytes]":
        flags = [f"-W{option}" for option in sys.warnoptions]
        # A sitecustomize module on PYTHONPATH, such as OpenTelemetry's, may start threads, which prevent forks.
        environment = dict(os.environ)
        python_path = environment.pop("PYTHONPATH", None)
        arguments = json.dumps([sys.path, python_path, control, apps.ready])
        return subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-P", *flags, "-c", CODE, arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[control],
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code of the preload process, or None while it runs."""
        return self._process.poll()

    def has_ended(self) -> bool:
        """Return whether the preload process has ended, or ends now."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(MAX_EXIT_SECONDS)
        return self.code is not None

    def spawn(self, options: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Start a child, and return its number. ``descriptors``: its socket, its pipes, and the pipe for its report."""
        with self._lock:
            self._numbers += 1
            number = self._numbers
        command = {"verb": "spawn", "number": number, "options": options, "imports": list(proven_modules)}
        self._send(command, descriptors)
        return number

    def kill(self, number: int) -> None:
        """Kill a child that is not ready, whose pid only the preload process knows."""
        with suppress(OSError):  # When it ends, its children end too.
            self._send({"verb": "kill", "number": number})

    def _send(self, command: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        body = json.dumps(command).encode()
        with self._lock:
            try:
                # The descriptors come with the first bytes.
                header = LENGTH.pack(len(body))
                sent = socket.send_fds(self._control, [header + body], descriptors)
                self._control.sendall((header + body)[sent:])
            except TimeoutError:
                self._process.kill()
                raise

    def close(self) -> None:
        """End it, and with it all children."""
        self._control.close()
        try:
            self._process.wait(MAX_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(MAX_EXIT_SECONDS)

    def forget(self) -> None:
        """Forget it. This process is a fork, so it belongs to the process that started it."""
        self._control.close()
        self._process.returncode = 0  # It is not a child of this process, which therefore cannot wait for it.


_lock = threading.Lock()
_current: Preload | None = None


def get_preload() -> Preload:
    """Return the running preload process, or start one."""
    global _current
    with _lock:
        if _current is None or _current.code is not None:
            if _current is not None:
                _current.close()
            _current = Preload()
        return _current


def discard_preload(preload: Preload) -> None:
    """End a preload process that does not work, so that the next use of a pool starts another one."""
    global _current
    with _lock:
        if _current is preload:
            _current = None
            preload.close()


def close_preload() -> None:
    """End the preload process and all children. The next use of a pool starts another one."""
    if (preload := _current) is not None:
        discard_preload(preload)


def _forget_in_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.forget()
        _current = None


#: Modules of set-up functions that children have called: importing them is harmless.
proven_modules: dict[str, None] = {}


def prove(setup: str) -> None:
    """Record that a child is ready, so that the preload process may import the module of its set-up."""
    proven_modules[setup.partition(":")[0]] = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_fork)
