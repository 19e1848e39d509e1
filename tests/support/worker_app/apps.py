import math
import os
import time
from pathlib import Path
from typing import Any

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.support.worker_app"

    def ready(self) -> None:
        if method := os.environ.get("FAILING"):
            _break(method)
        if os.environ.get("DEAF"):
            _hang_when_stopped()
        if file := os.environ.get("BROKEN_IF"):
            _break_workers(file)
        if seconds := os.environ.get("READY_SECONDS"):
            _limit_readiness(float(seconds))
        if seconds := os.environ.get("STOP_SECONDS"):
            _prolong_stop(float(seconds))
        if seconds := os.environ.get("ABORT_SECONDS"):
            _prolong_abort(float(seconds))
        if seconds := os.environ.get("RESTART_SECONDS"):
            _delay_restarts(float(seconds))


def _break(method: str) -> None:
    """Make one method of the store fail in every call, in a worker with short waits."""
    from django_jobchains.store import get_store
    from django_jobchains.worker import threads

    def bug(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("a bug")

    group, _, name = method.partition(".")
    setattr(getattr(get_store(), group), name, bug)
    threads.LAST_WAIT_SECONDS = 0.01


def _hang_when_stopped() -> None:
    """Make stopping a worker take ten minutes."""
    from django_jobchains.worker import Worker

    Worker.stop = lambda worker: time.sleep(600)


def _break_workers(file: str) -> None:
    """Prevent workers from starting while the file exists, and let the supervisor retry soon."""
    from django_jobchains.worker import supervised_process
    from django_jobchains.worker.parent_link import VARIABLE

    if VARIABLE in os.environ and Path(file).exists():
        raise RuntimeError("this version is broken")
    supervised_process.FIRST_WAIT_SECONDS = 0.01


def _limit_readiness(seconds: float) -> None:
    """Make the worker unready as soon as a step or a response of the database takes longer than this."""
    from django_jobchains.worker import health

    health.SLOW_SECONDS = health.LATE_SECONDS = seconds


def _prolong_stop(seconds: float) -> None:
    """Change how long a stopping worker waits for its last writes, and its supervisor for its end."""
    from django_jobchains.worker import parent_link, shutdown, supervisor

    shutdown.STEP_SECONDS = seconds
    parent_link.EXIT_GRACE_SECONDS = supervisor.EXIT_GRACE_SECONDS = 2 * seconds


def _prolong_abort(seconds: float) -> None:
    """Change how long a stopping worker waits for handlers that it has asked to stop."""
    from django_jobchains.worker import shutdown

    shutdown.ABORT_GRACE_SECONDS = seconds


def _delay_restarts(seconds: float) -> None:
    """Let the supervisor wait this long before it restarts a process, however long it has run."""
    from django_jobchains.worker import supervised_process

    supervised_process.FIRST_WAIT_SECONDS, supervised_process.MIN_LIFETIME_SECONDS = seconds, math.inf
