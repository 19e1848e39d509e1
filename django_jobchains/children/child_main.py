"""The main function of a child process of a pool."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, NoReturn, TypedDict

from django.conf import settings

from django_jobchains.children.call_loop import CallLoop, close_connections, flush_streams
from django_jobchains.children.frames import CHUNK_BYTES, FrameBuffer, Message, encode_frame, take_ticket
from django_jobchains.children.limits import die_with_parent, limit_memory, raise_oom_score
from django_jobchains.text.errors import describe, traceback_of

#: The environment variables that ``minimal_env`` keeps, and the prefixes of their names.
KEPT_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE"}
)
KEPT_PREFIXES = ("LC_", "PYTHON")


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
        _run_calls(connection, inherited, options, parent)
        code = 0
    except BaseException as error:
        sys.stderr.write(traceback_of(error))
    finally:
        close_connections()
        flush_streams()
        os._exit(code)


def _run_calls(connection: socket.socket, inherited: Descriptors, options: ChildOptions, parent: int) -> None:
    die_with_parent(parent)
    raise_oom_score()
    lock = threading.Lock()

    def write(data: bytes) -> None:
        """Write a whole message, from any thread."""
        with lock, suppress(OSError):  # The caller has ended, which the watching thread notices.
            connection.sendall(data)

    loop = CallLoop(write, options["message_limit"])
    threading.Thread(target=_watch, args=(inherited.watch, loop), name="jobchains-caller-watch", daemon=True).start()
    try:
        _prepare(options)
    except BaseException as error:
        write(encode_frame({"failed": describe(error)}))
        raise
    write(encode_frame({"ready": os.getpid()}))
    loop.run(_messages(connection), partial(take_ticket, inherited.tickets))


def _prepare(options: ChildOptions) -> None:
    if settings.configured:
        from django.db import connections

        # A test runner of the caller may have replaced the databases of the settings.
        for alias, name in options["databases"].items():
            connections.settings[alias]["NAME"] = name
    if options["minimal_env"]:
        minimize_environment()
    if (size := options["memory_limit"]) is not None:
        limit_memory(size)
    for name in options["imports"]:
        import_module(name)
    if (setup := options["setup"]) is not None:
        resolve_name(setup)()


def minimize_environment() -> None:
    """Remove the other variables from this process: from ``os.environ``, and from what the kernel shows of it.

    The settings were loaded before, with all variables.
    """
    kept = {name: value for name, value in os.environ.items() if name in KEPT_NAMES or name.startswith(KEPT_PREFIXES)}
    os.environ.clear()
    # Removing a variable leaves its text in memory, where /proc/self/environ shows it. Nothing refers to it anymore.
    with suppress(OSError):  # The system has no such file.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        if 0 < start < end:
            import ctypes

            ctypes.memset(start, 0, end - start)
    os.environ.update(kept)


def _messages(connection: socket.socket) -> Iterator[Message]:
    frames = FrameBuffer()
    with suppress(OSError):  # The caller has ended.
        while received := connection.recv(CHUNK_BYTES):
            yield from frames.add(received)


def _watch(descriptor: int, loop: CallLoop) -> None:
    """Pass aborts on while the main thread runs functions. If the caller has died, end everything at once."""
    frames = FrameBuffer()
    while received := os.read(descriptor, CHUNK_BYTES):
        for message in frames.add(received):
            if "exit" in message:
                return
            loop.abort(message["id"], message["abort"], message["part"])
    os.killpg(os.getpgrp(), signal.SIGKILL)
