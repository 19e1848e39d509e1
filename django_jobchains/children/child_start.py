"""Starts children in the preload process: as a fork of it, or as a fresh interpreter if forking is not safe."""

import json
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from django_jobchains.children.call_loop import close_connections
from django_jobchains.children.child_main import ChildOptions, Descriptors, run_child


def start_child(options: ChildOptions, descriptors: Descriptors) -> int:
    """Start a child, and return its pid. Raises ``OSError``."""
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
from django_jobchains.children.child_start import run_spawned
run_spawned(*arguments)
"""


def _spawn(options: ChildOptions, descriptors: Descriptors, parent: int, problem: str) -> int:
    """Start a child as a fresh interpreter, which sets up Django again."""
    _warn_once(problem)
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


_warned: set[str] = set()


def _warn_once(problem: str) -> None:
    if problem not in _warned:
        _warned.add(problem)
        sys.stderr.write(f"Child pools start their children as fresh interpreters, which is slow: {problem}.\n")
