import os
import time
from pathlib import Path
from typing import Any

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos.app"

    def ready(self) -> None:
        if method := os.environ.get("FAILING"):
            _break(method)
        if os.environ.get("DEAF"):
            _deafen()
        if file := os.environ.get("BROKEN_IF"):
            _break_workers(file)


def _break(method: str) -> None:
    """A bug in one method of the store, for ever, in a worker that does not wait long."""
    from django_jobchains.store import get_store
    from django_jobchains.worker import threads

    def bug(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("a bug")

    setattr(get_store(), method, bug)
    threads.LAST_WAIT_SECONDS = 0.01


def _deafen() -> None:
    """A worker that does not stop, whatever it is told."""
    from django_jobchains.worker import Worker

    Worker.stop = lambda worker: time.sleep(600)


def _break_workers(file: str) -> None:
    """A version whose workers cannot start while the file exists, under a supervisor that does not wait long."""
    from django_jobchains.worker import restarts
    from django_jobchains.worker.tether import VARIABLE

    if VARIABLE in os.environ and Path(file).exists():
        raise RuntimeError("this version is broken")
    restarts.FIRST_WAIT_SECONDS = 0.01
