"""Functions that the tests call in child processes."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from django_jobchains.pools import current_signal, send

__all__ = ("threading",)  # for evaluate()

#: Longer than any test waits.
FOREVER = 600

calls = 0
was_set_up = False
kept = []


def set_up():
    global was_set_up
    was_set_up = True


def fail_to_set_up():
    raise LookupError("no model to load")


def die_in_set_up():
    sys.stderr.write("cannot be set up\n")
    os._exit(7)


def hang_in_set_up():
    time.sleep(FOREVER)


def echo(payload):
    return payload


def pid(payload):
    return os.getpid()


def fail(payload):
    raise ValueError(payload)


def die(payload):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(payload):
    send("begun")
    time.sleep(FOREVER)


def wait_for_abort(payload):
    send("begun")
    current_signal().wait(FOREVER)
    return current_signal().reason


def evaluate(payload):
    """Return the value of a Python expression, with the names of this module."""
    return eval(payload)


def count(payload):
    global calls
    calls += 1
    return calls


def write_to_socket(payload):
    """Write bytes to the socket of the child, as a C library may do that closes and uses wrong descriptors."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if path.readlink().name.startswith("socket:"):
                os.write(int(path.name), bytes.fromhex(payload))
    return "written"


def recurse(payload):
    recurse(payload)


def leave_socket_behind(payload):
    """Die while a process of another session still has the socket open."""
    if not os.fork():
        os.setsid()
        Path(payload).write_text(str(os.getpid()))
        time.sleep(FOREVER)
    while not Path(payload).exists():
        time.sleep(0.01)
    os._exit(5)


def stop_when_aborted(payload):
    send("begun")
    assert current_signal().wait(FOREVER)
    current_signal().raise_if_aborted()


def wait_for_abort_despite_sigterm(payload):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return wait_for_abort(payload)


def send_forever(payload):
    while True:
        send("x" * 1000)


def hang_without_sigterm(payload):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send("begun")
    while True:
        with suppress(BaseException):
            time.sleep(FOREVER)


def start_grandchild(payload):
    kept.append(subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"]))
    return kept[-1].pid


def hang_in_c(payload):
    """Start a child process, and hold the GIL in a call that never returns."""
    Path(payload).write_text(f"{os.getpid()} {start_grandchild(None)}")
    ctypes.PyDLL(None).sleep(FOREVER)


def send_all(payload):
    for message in payload:
        send(message)
    return "sent"


def burn(payload):
    """Use CPU time."""
    until = time.process_time() + payload
    while time.process_time() < until:
        pass
    return "burnt"


def descriptors(payload):
    found = {}
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the descriptor of the listing is closed already
            found[path.name] = str(path.readlink())
    return found


def users(payload):
    from django.contrib.auth.models import User

    return User.objects.count()


def leave_transaction_open(payload):
    from django.contrib.auth.models import User
    from django.db import transaction

    transaction.set_autocommit(False)
    User.objects.create(username=payload)


def connections(payload):
    """Return the names of the databases, and whether each of them is connected."""
    from django.db import connections

    return [[str(each.settings_dict["NAME"]), each.connection is not None] for each in connections.all()]


def step(payload):
    """Act as the payload requests: wait for an abort, die, hang in C, or return the payload."""
    if payload == "die":
        die(payload)
    elif payload == "wait":
        return wait_for_abort(None)
    elif isinstance(payload, list):
        hang_in_c(payload[0])
    return payload


def touch_and_wait(payload):
    """Create a file, if one is given, and wait for an abort."""
    if payload is None:
        return None
    Path(payload).touch()
    return wait_for_abort(None)
