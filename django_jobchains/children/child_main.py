"""The main function of a child process of a pool."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, NamedTuple, NoReturn, TypedDict

from django.conf import settings

from django_jobchains.children.call_loop import CallLoop, close_connections, flush_streams
from django_jobchains.children.environment import minimize_environment
from django_jobchains.children.frames import CHUNK_BYTES, FrameBuffer, Message, encode_frame
from django_jobchains.children.limits import die_with_parent, limit_memory, raise_oom_score
from django_jobchains.children.tickets import TicketPipe, requests_of
from django_jobchains.text.errors import describe, traceback_of


class Descriptors(NamedTuple):
    """What a child inherits.

    ``connection``: a socket for calls and replies. ``watch``: a pipe with aborts, whose end means that the caller died.
    ``tickets``: a pipe with the tickets of calls. ``stderr``: its standard error.
    """

    connection: int
    watch: int
    tickets: int
    stderr: int


class ChildOptions(TypedDict):
    """What a child process does before its first call.

    ``databases``: the names of the caller's databases, by alias. ``imports``: modules that its calls need.
    """

    imports: list[str]
    setup: str | None
    memory_limit: int | None
    message_limit: int
    minimal_env: bool
    databases: dict[str, Any]


def run_child(inherited: Descriptors, options: ChildOptions, parent: int) -> NoReturn:
    """Run calls until the caller closes the connection. Never returns, and runs no exit handlers of the parent."""
    code = 1
    try:
        # Only the end of the process closes it: for the caller, that is the end of the child.
        connection = socket.socket(fileno=inherited.connection)
        _start(connection, inherited, options, parent)
        code = 0
    except BaseException as error:
        sys.stderr.write(traceback_of(error))
    finally:
        close_connections()
        flush_streams()
        os._exit(code)


def _start(connection: socket.socket, inherited: Descriptors, options: ChildOptions, parent: int) -> None:
    die_with_parent(parent)
    raise_oom_score()
    write = _Writer(connection)
    loop = CallLoop(write, options["message_limit"])
    threading.Thread(target=_watch, args=(inherited.watch, loop), name="jobchains-caller-watch", daemon=True).start()
    try:
        _prepare(options)
    except BaseException as error:
        write(encode_frame({"failed": describe(error)}))
        raise
    write(encode_frame({"ready": os.getpid()}))
    loop.run(requests_of(_messages(connection), TicketPipe(inherited.tickets)))


def _prepare(options: ChildOptions) -> None:
    if settings.configured:
        _use_databases(options["databases"])
    if options["minimal_env"]:
        minimize_environment()
    if (size := options["memory_limit"]) is not None:
        limit_memory(size)
    for name in options["imports"]:
        import_module(name)
    if (setup := options["setup"]) is not None:
        resolve_name(setup)()


def _use_databases(names: dict[str, Any]) -> None:
    """Use the caller's databases, because its test runner may have replaced the databases of the settings."""
    from django.db import connections

    for alias, name in names.items():
        connections.settings[alias]["NAME"] = name


def _messages(connection: socket.socket) -> Iterator[Message]:
    frames = FrameBuffer()
    while received := _received(connection):
        yield from frames.add(received)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(CHUNK_BYTES)
    except OSError:
        return b""


def _watch(descriptor: int, loop: CallLoop) -> None:
    """Pass aborts on while the main thread runs functions. If the caller has died, end everything at once."""
    frames = FrameBuffer()
    while received := os.read(descriptor, CHUNK_BYTES):
        for message in frames.add(received):
            if "exit" in message:
                return
            loop.abort(message["id"], message["abort"], message["part"])
    os.killpg(os.getpgrp(), signal.SIGKILL)


class _Writer:
    """Writes whole messages from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, data: bytes) -> None:
        with self._lock, suppress(OSError):  # The caller has ended, which the watching thread notices.
            self._connection.sendall(data)
