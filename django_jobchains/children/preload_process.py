"""The preload process, which sets up Django, starts the children of the pools, and is their parent; and their main.

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
import threading
import warnings
from collections.abc import Iterable, Iterator
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

LENGTH = struct.Struct("!I")
#: A preload process whose set-up takes longer ends itself, because during the set-up it cannot notice that it is
#: orphaned.
MAX_SETUP_SECONDS = 120
#: How much of the end of a child's standard error is kept.
STDERR_BYTES = 4096
#: How many bytes are read in one call: the capacity of a pipe. A child that writes without a pause must not delay the
#: others.
PIPE_BYTES = 65536
#: Modules of the standard library that every child uses.
USED_BY_CHILDREN = ("ctypes", "resource")


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


def main(control: int, sets_up_django: bool) -> None:
    """Run until the process that started this one has ended.

    ``control``: the descriptor of a socket for commands. ``sets_up_django``: whether the caller has done so.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # They are meant for the process that started this one.
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(MAX_SETUP_SECONDS)
    if sets_up_django:
        import django

        django.setup()
    signal.alarm(0)
    _import(USED_BY_CHILDREN)
    with socket.socket(fileno=control) as connection:
        PreloadProcess(connection).run()


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
            for child in self._children.values():
                child.kill()

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
        try:
            header, descriptors, _, _ = socket.recv_fds(self._control, LENGTH.size, 4)
            body = self._control.recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL) if header else b""
        except (OSError, struct.error):
            body = b""
        if not body:
            self._has_ended = True
            return
        command = json.loads(body)
        if command["verb"] == "spawn":
            self._spawn(command["number"], command["options"], command["imports"], descriptors)
        elif child := self._children.get(command["number"]):
            child.kill()

    def _spawn(self, number: int, options: ChildOptions, imports: list[str], descriptors: list[int]) -> None:
        """Start a child. ``descriptors``: the descriptors of the child, and one for the report of its end."""
        try:
            connection, watch, tickets, report = descriptors
            child = ProcessRecord(report)
        except (ValueError, OSError):  # Too many open files. The caller notices that the pipe for the report is closed.
            for descriptor in descriptors:
                os.close(descriptor)
            return
        try:
            _import([*imports, *options["imports"]])
            if child.is_given_up():
                child.report_failure(ConnectionError("nobody waits for it"))
                return
            child.pid = start_child(options, Descriptors(connection, watch, tickets, child.stderr_writer))
        except Exception as error:  # For example, there is no memory, or there are too many processes.
            child.report_failure(error)
            return
        finally:
            for descriptor in (connection, watch, tickets, child.stderr_writer):
                os.close(descriptor)
        self._children[number] = child
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


def _import(names: Iterable[str]) -> None:
    """Import modules that every child would import, so that the next ones start faster."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with suppress(Exception):  # The child itself will report the error.
            import_module(name)
    if missing:
        gc.freeze()  # Otherwise the garbage collector of a child would copy the pages of all objects.


class ProcessRecord:
    """A child process, from the side of the preload process.

    ``report``: a socket that gets one line when the child has ended, or could not start. The caller signals the child
    itself, so the child is reaped only after the caller has closed the other end: until then, its pid cannot belong to
    another process.
    """

    def __init__(self, report: int) -> None:
        self.pid = 0
        self.report = report
        #: Whether the end was reported.
        self.is_reported = False
        self._exitcode = 0
        self._tail = b""
        self.stderr, self.stderr_writer = os.pipe()
        os.set_blocking(self.stderr, False)

    def is_given_up(self) -> bool:
        """Return whether the caller has closed its end of the report."""
        poll = select.poll()
        poll.register(self.report, 0)
        return bool(poll.poll(0))

    def kill(self) -> None:
        """Kill it and its process group."""
        self._kill_group()
        with suppress(ProcessLookupError):  # It may have no group yet.
            os.kill(self.pid, signal.SIGKILL)

    def read_stderr(self) -> bool:
        """Read once, keep the end of its output, and pass the output on. Return False at the end of file."""
        try:
            received = os.read(self.stderr, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + received)[-STDERR_BYTES:]
        _pass_on(received)
        return bool(received)

    def has_ended(self) -> bool:
        """Return whether it has ended. The rest of its process group is killed while the pid is still its own."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13. It does not use a pid again soon.
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._exitcode = os.waitstatus_to_exitcode(status) if pid else 0
            return bool(pid)
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self._exitcode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._kill_group()
        return True

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def report_end(self) -> None:
        self.read_stderr()
        self._report({"exitcode": self._exitcode, "stderr": self._tail.decode(errors="replace")})

    def report_failure(self, error: Exception) -> None:
        """Report that it could not be started."""
        self._report({"failed": f"{type(error).__name__}: {error}"})
        os.close(self.report)

    def _report(self, report: dict[str, object]) -> None:
        self.is_reported = True
        with suppress(OSError):  # Nobody needs the report anymore.
            os.write(self.report, json.dumps(report).encode())
        os.close(self.stderr)
        self.stderr = -1

    def reap(self) -> None:
        """Release the pid, after the caller has closed its end."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.report)


def _pass_on(text: bytes) -> None:
    """Write to the standard error of this process, unless that would block and delay the children."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    for start in range(0, len(text), select.PIPE_BUF):
        if not any(events & select.POLLOUT for _, events in poll.poll(0)):
            return
        with suppress(OSError):
            os.write(2, text[start : start + select.PIPE_BUF])


def start_child(options: ChildOptions, descriptors: Descriptors) -> int:
    """Start a child as a fork, or as a fresh interpreter if forking is not safe. Return its pid. Raises ``OSError``."""
    parent = os.getpid()
    if problem := fork_problem():
        return _spawn(options, descriptors, parent, problem)
    close_connections()  # those that importing the project has opened: children would share them
    with warnings.catch_warnings():  # about threads of C libraries
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            become_child(descriptors)
            run_child(descriptors, options, parent)
        finally:
            os._exit(1)
    return pid


def fork_problem() -> str:
    """Return why a fork would not be safe, or ""."""
    if sys.platform == "darwin":
        return "system libraries of macOS do not support it"
    if others := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        return f"importing the project has started threads ({', '.join(others)})"
    return ""


CHILD_CODE = """\
import json, sys
path, *arguments = json.loads(sys.argv[1])
sys.path[:] = path
from django_jobchains.children.preload_process import run_spawned
run_spawned(*arguments)
"""
_warned: set[str] = set()


def _spawn(options: ChildOptions, descriptors: Descriptors, parent: int, problem: str) -> int:
    """Start a child as a fresh interpreter, which sets up Django again."""
    if problem not in _warned:
        _warned.add(problem)
        sys.stderr.write(f"Pools start their children as fresh interpreters, which is slow: {problem}.\n")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    sets_up_django = "django.apps" in sys.modules and sys.modules["django.apps"].apps.ready
    arguments = json.dumps([sys.path, options, descriptors, parent, sets_up_django])
    flags = [f"-W{option}" for option in sys.warnoptions]
    command = [sys.executable, "-P", *flags, "-c", CHILD_CODE, arguments]
    return os.posix_spawn(sys.executable, command, dict(os.environ))


def run_spawned(options: ChildOptions, descriptors: list[int], parent: int, sets_up_django: bool) -> NoReturn:
    own = Descriptors(*descriptors)
    become_child(own)
    if sets_up_django:
        import django

        django.setup()
    run_child(own, options, parent)


def become_child(descriptors: Descriptors) -> None:
    """Give this child its own session and process group, the default signals, and no other descriptors."""
    signal.set_wakeup_fd(-1)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(descriptors.stderr, 2)
    kept = (descriptors.connection, descriptors.watch, descriptors.tickets)
    for path in list(Path("/dev/fd").iterdir()):
        descriptor = int(path.name)
        if descriptor > 2 and descriptor not in kept:
            with suppress(OSError):  # One of them belongs to the listing itself.
                os.close(descriptor)
    for descriptor in kept:
        os.set_inheritable(descriptor, False)


#: The environment variables that ``minimal_env`` keeps, and the prefixes of their names.
KEPT_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE"}
)
KEPT_PREFIXES = ("LC_", "PYTHON")


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
    """Pass aborts on while the main thread runs functions. If the caller has died, end everything immediately."""
    frames = FrameBuffer()
    while received := os.read(descriptor, CHUNK_BYTES):
        for message in frames.add(received):
            if "exit" in message:
                return
            loop.abort(message["id"], message["abort"], message["part"])
    os.killpg(os.getpgrp(), signal.SIGKILL)
