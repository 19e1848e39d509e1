import sys
from functools import partial
from typing import NamedTuple

import pytest

from django_jobchains.tasks_backend import framework
from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKENDS

SIGNALS = {name: getattr(framework, name) for name in ("task_enqueued", "task_started", "task_finished")}


class Sent(NamedTuple):
    name: str
    sender: type
    result: object
    status: str
    error: BaseException | None


@pytest.fixture(autouse=True)
def _backends(settings):
    settings.TASKS = BACKENDS
    tasks.calls.clear()
    tasks.gate.clear()
    yield
    tasks.gate.set()


@pytest.fixture
def signals():
    """The signals that were sent, in order."""
    sent = []

    def receive(name, sender, task_result, **kwargs):
        sent.append(Sent(name.removeprefix("task_"), sender, task_result, task_result.status, sys.exc_info()[1]))

    receivers = {name: partial(receive, name) for name in SIGNALS}
    for name, receiver in receivers.items():
        SIGNALS[name].connect(receiver)
    yield sent
    for name, receiver in receivers.items():
        SIGNALS[name].disconnect(receiver)


@pytest.fixture
def run(make_worker):
    """Run all tasks that are due."""
    return lambda **options: make_worker(**options).run_until_idle()


@pytest.fixture
def start_tasks(start_process):
    """Start worker processes that run tasks."""
    return partial(start_process, DJANGO_SETTINGS_MODULE="tests.tasks_backend.worker_settings")
