"""The preload process: it sets up Django, forks the children of the pools, and is their parent.

It has one thread and no database connection, so that its forks are clean. It reports how children end, and kills
them with their process groups when the process that started it has ended for any reason.
"""

import gc
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TypedDict

from django_jobchains.children.child_main import ChildOptions, Descriptors
from django_jobchains.children.child_start import start_child
from django_jobchains.children.process_record import ProcessRecord

LENGTH = struct.Struct("!I")
#: A preload process whose set-up takes longer ends itself, because during the set-up it cannot notice that it is
#: orphaned.
MAX_SETUP_SECONDS = 120


#: Modules of the standard library that every child uses.
USED_BY_CHILDREN = ("ctypes", "resource")


class PreloadOptions(TypedDict):
    """``control``: the descriptor of a socket for commands. ``sets_up_django``: whether the caller has done so."""

    control: int
    sets_up_django: bool


class PreloadCommand(TypedDict, total=False):
    """``verb``: "spawn", with four descriptors (the last for the report), or "kill", for a child that is not ready."""

    verb: str
    number: int
    options: ChildOptions
    imports: list[str]


def main(options: PreloadOptions) -> None:
    """Run until the process that started this one has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):  # They are meant for the process that started this one.
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(MAX_SETUP_SECONDS)
    if options["sets_up_django"]:
        import django

        django.setup()
    signal.alarm(0)
    _import(USED_BY_CHILDREN)
    with socket.socket(fileno=options["control"]) as control:
        PreloadProcess(control).run()


class PreloadProcess:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, ProcessRecord] = {}
        self._poll = select.poll()
        self._woken, self._wake = os.pipe()
        self._has_ended = False

    def run(self) -> None:
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake)
        for descriptor in (self._control.fileno(), self._woken):
            self._poll.register(descriptor, select.POLLIN)
        try:
            while not self._has_ended:
                self._step()
        finally:
            self._kill_all()

    def _step(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._control.fileno():
                self._obey()
            elif descriptor == self._woken:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
            else:
                self._attend(descriptor)
        self._report_ends()

    def _obey(self) -> None:
        command, descriptors = self._receive()
        if command is None:
            self._has_ended = True
        elif command["verb"] == "spawn":
            self._spawn(command, descriptors)
        elif child := self._children.get(command["number"]):
            child.kill()

    def _receive(self) -> tuple[PreloadCommand | None, list[int]]:
        try:
            header, descriptors, _, _ = socket.recv_fds(self._control, LENGTH.size, 4)
            body = self._control.recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL) if header else b""
        except (OSError, struct.error):
            body = b""
        return (json.loads(body), descriptors) if body else (None, [])

    def _spawn(self, command: PreloadCommand, descriptors: list[int]) -> None:
        try:
            connection, watch, tickets, report = descriptors
            child = ProcessRecord(report)
        except (ValueError, OSError):  # Too many open files. The caller notices that the pipe for the report is closed.
            _close(descriptors)
            return
        try:
            _import([*command["imports"], *command["options"]["imports"]])
            if _is_closed(report):  # The caller has given up the child in the meantime.
                child.report_failure(ConnectionError("nobody waits for it"))
                return
            child.pid = start_child(command["options"], Descriptors(connection, watch, tickets, child.stderr_writer))
        except Exception as error:  # For example, there is no memory, or there are too many processes.
            child.report_failure(error)
            return
        finally:
            _close([connection, watch, tickets])
            child.close_writer()
        self._children[command["number"]] = child
        self._poll.register(child.stderr, select.POLLIN)

    def _attend(self, descriptor: int) -> None:
        """Forward what a child has written, or reap a child whose report the caller has closed."""
        for number, child in list(self._children.items()):
            if child.stderr == descriptor and not child.read_stderr():
                self._poll.unregister(descriptor)
            elif child.report == descriptor:
                self._poll.unregister(descriptor)
                child.reap()
                del self._children[number]

    def _report_ends(self) -> None:
        for child in self._children.values():
            if not child.is_reported and child.has_ended():
                with suppress(KeyError):
                    self._poll.unregister(child.stderr)
                child.report_end()
                self._poll.register(child.report, 0)  # only for the end of the connection

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.kill()


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _is_closed(report: int) -> bool:
    """Return whether the caller has closed its end."""
    poll = select.poll()
    poll.register(report, 0)
    return bool(poll.poll(0))


def _import(names: Iterable[str]) -> None:
    """Import modules that every child would import, so that the next ones start faster."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with suppress(Exception):  # The child itself will report the error.
            import_module(name)
    if missing:
        gc.freeze()  # Otherwise the garbage collector of a child would copy the pages of all objects.
