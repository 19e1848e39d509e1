"""Functions that the contract of pools calls in child processes."""

import os
import signal
import time
from typing import Any

from django_jobchains.pools import current_signal, send

#: Longer than any test waits.
FOREVER = 600


def echo(payload: Any) -> Any:
    return payload


def pid(payload: Any) -> int:
    return os.getpid()


def fail(payload: str) -> None:
    raise ValueError(payload)


def die(payload: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(payload: Any) -> None:
    send("begun")
    time.sleep(FOREVER)


def wait_for_abort(payload: Any) -> str | None:
    """Return the reason of the abort. A payload other than None is returned immediately."""
    if payload is not None:
        return str(payload)
    send("begun")
    current_signal().wait(FOREVER)
    return current_signal().reason
