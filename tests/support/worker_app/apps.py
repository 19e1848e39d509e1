import math
import os
import time
from importlib import import_module
from pathlib import Path

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.support.worker_app"

    def ready(self):
        for variable, cause in FAULTS.items():
            if value := os.environ.get(variable):
                cause(value)
        for variable, constants in DURATIONS.items():
            if seconds := os.environ.get(variable):
                for name, factor in constants.items():
                    module, _, constant = name.partition(".")
                    worker_module = import_module(f"django_jobchains.worker.{module}")
                    setattr(worker_module, constant, factor * float(seconds))


def break_method(method):
    """Make one method of the store fail in every call, in a worker with short waits."""
    from django_jobchains.store import get_store
    from django_jobchains.worker import threads

    def bug(*args, **kwargs):
        raise ValueError("a bug")

    group, _, name = method.partition(".")
    setattr(getattr(get_store(), group), name, bug)
    threads.LAST_WAIT_SECONDS = 0.01


def hang_when_stopped(value):
    """Make stopping a worker take ten minutes."""
    from django_jobchains.worker import Worker

    Worker.stop = lambda worker: time.sleep(600)


def break_workers(file):
    """Prevent workers from starting while the file exists, and let the supervisor retry soon."""
    from django_jobchains.worker import supervised_process
    from django_jobchains.worker.supervised_process import VARIABLE

    if VARIABLE in os.environ and Path(file).exists():
        raise RuntimeError("this version is broken")
    supervised_process.FIRST_WAIT_SECONDS = 0.01


#: What the environment may ask for.
FAULTS = {"FAILING": break_method, "DEAF": hang_when_stopped, "BROKEN_IF": break_workers}
#: Constants of the worker that an environment variable multiplies: how long a step or a response of the database may
#: take before the worker is unready, how long it waits for its last writes, for handlers that it has asked to stop, and
#: before it restarts a process.
DURATIONS = {
    "READY_SECONDS": {"health.SLOW_SECONDS": 1, "health.LATE_SECONDS": 1},
    "STOP_SECONDS": {
        "shutdown.STEP_SECONDS": 1,
        "supervised_process.EXIT_GRACE_SECONDS": 2,
        "supervisor.EXIT_GRACE_SECONDS": 2,
    },
    "ABORT_SECONDS": {"shutdown.ABORT_GRACE_SECONDS": 1},
    "RESTART_SECONDS": {
        "supervised_process.FIRST_WAIT_SECONDS": 1,
        "supervised_process.MIN_LIFETIME_SECONDS": math.inf,
    },
}
