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
from typing import Any

from django_jobchains.pools import current_signal, send

#: Longer than any test waits.
FOREVER = 600

calls = 0
was_set_up = False


def set_up() -> None:
    global was_set_up
    was_set_up = True


def fail_to_set_up() -> None:
    raise LookupError("no model to load")


def die_in_set_up() -> None:
    sys.stderr.write("cannot be set up\n")
    os._exit(7)


def hang_in_set_up() -> None:
    time.sleep(FOREVER)


def is_set_up(payload: Any) -> bool:
    return was_set_up


def echo(payload: Any) -> Any:
    return payload


def count(payload: Any) -> int:
    global calls
    calls += 1
    return calls


def pid(payload: Any) -> int:
    return os.getpid()


def thread_name(payload: Any) -> str:
    return threading.current_thread().name


def fail(payload: str) -> None:
    raise ValueError(payload)


def exit_python(payload: Any) -> None:
    sys.exit(3)


def return_object(payload: Any) -> object:
    return object()


def exit_now(payload: int) -> None:
    print("about to exit", file=sys.stderr, flush=True)
    os._exit(payload)


def kill_itself(payload: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash(payload: Any) -> None:
    ctypes.string_at(0)


def write_to_socket(payload: str) -> str:
    """Write bytes to the socket of the child, as a C library may do that closes and uses wrong descriptors."""
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if path.readlink().name.startswith("socket:"):
                os.write(int(path.name), bytes.fromhex(payload))
    return "written"


def recurse(payload: Any) -> None:
    recurse(payload)


def leave_socket_behind(payload: Any) -> None:
    """Die while a process of another session still has the socket open."""
    if not os.fork():
        os.setsid()
        Path(payload).write_text(str(os.getpid()))
        time.sleep(FOREVER)
    while not Path(payload).exists():
        time.sleep(0.01)
    os._exit(5)


def write_much_and_exit(payload: Any) -> None:
    os.write(2, b"x" * 300_000 + b"the end")
    os._exit(1)


def wait_for_abort(payload: Any) -> None:
    send("waiting")
    assert current_signal().wait(FOREVER)
    current_signal().raise_if_aborted()


def reason_of_abort(payload: Any) -> str | None:
    send("waiting")
    current_signal().wait(FOREVER)
    return current_signal().reason


def reason_of_abort_despite_sigterm(payload: Any) -> str | None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return reason_of_abort(payload)


def send_forever(payload: Any) -> None:
    while True:
        send("x" * 1000)


def hang(payload: Any) -> None:
    send("waiting")
    time.sleep(FOREVER)


def hang_without_sigterm(payload: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send("waiting")
    while True:
        with suppress(BaseException):
            time.sleep(FOREVER)


def hang_in_c(payload: Any) -> None:
    """Start a child process, and hold the GIL in a call that never returns."""
    grandchild = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    Path(payload).write_text(f"{os.getpid()} {grandchild.pid}")
    ctypes.PyDLL(None).sleep(FOREVER)


def start_grandchild(payload: Any) -> int:
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"]).pid


def send_all(payload: list[Any]) -> str:
    for message in payload:
        send(message)
    return "sent"


def return_letters(payload: int) -> str:
    return "x" * payload


def send_letters(payload: int) -> None:
    send("x" * payload)


def allocate(payload: int) -> int:
    return len(bytearray(payload))


_kept: list[bytearray] = []


def leak(payload: int) -> None:
    _kept.append(bytearray(b"x" * payload))


def burn(payload: float) -> str:
    """Use CPU time."""
    until = time.process_time() + payload
    while time.process_time() < until:
        pass
    return "burnt"


def descriptors(payload: Any) -> dict[str, str]:
    found = {}
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the descriptor of the listing is closed already
            found[path.name] = str(path.readlink())
    return found


def environment(payload: Any) -> dict[str, str]:
    return dict(os.environ)


def initial_environment(payload: Any) -> str:
    return Path("/proc/self/environ").read_bytes().decode()


def environment_of_program(payload: Any) -> str:
    return subprocess.run(["env"], capture_output=True, text=True, check=True).stdout


def oom_score(payload: Any) -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


def session(payload: Any) -> list[int]:
    return [os.getpid(), os.getpgrp(), os.getsid(0), os.getppid()]


def users(payload: Any) -> int:
    from django.contrib.auth.models import User

    return User.objects.count()


def is_connected(payload: Any) -> bool:
    from django.db import connection

    return connection.connection is not None


def leave_transaction_open(payload: str) -> None:
    from django.contrib.auth.models import User
    from django.db import transaction

    transaction.set_autocommit(False)
    User.objects.create(username=payload)


def database_names(payload: Any) -> list[str]:
    from django.db import connections

    return [str(connection.settings_dict["NAME"]) for connection in connections.all()]


def step(payload: Any) -> Any:
    """Act as the payload requests: wait for an abort, die, hang in C, or return the payload."""
    if payload == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif payload == "wait":
        return reason_of_abort(payload)
    elif isinstance(payload, list):
        hang_in_c(payload[0])
    return payload


def touch_and_wait(payload: Any) -> str | None:
    """Create a file, if one is given, and wait for an abort."""
    if payload is None:
        return None
    Path(payload).touch()
    return reason_of_abort(payload)


def is_imported(payload: str) -> bool:
    return payload in sys.modules
