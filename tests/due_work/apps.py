"""Faults in a worker process: where the harness asks for it, the process dies, or a receiver of a signal fails."""

from django.apps import AppConfig
from django.tasks.signals import task_finished, task_started

from django_jobchains.store.attempts import Attempts
from django_jobchains.store.jobs import Jobs
from tests.due_work.faults import may_die, may_fail

DEATHS = (
    "after the claim",
    "in task_started",
    "in the task, after its effect",
    "before the end is written",
    "after the end is written",
)
FAILURES = ("task_started fails", "task_finished fails")


class DueWorkConfig(AppConfig):
    name = "tests.due_work"

    def ready(self):
        task_started.connect(on_started)
        task_finished.connect(on_finished)
        Jobs.claim = dying(Jobs.claim, after="after the claim")
        Attempts.finish = dying(Attempts.finish, before="before the end is written", after="after the end is written")


def on_started(**kwargs):
    may_die("in task_started")
    may_fail("task_started fails")


def on_finished(**kwargs):
    may_fail("task_finished fails")


def dying(method, before="", after=""):
    """Return a method that may die, once it has something to do."""

    def run(*args, **kwargs):
        if before:
            may_die(before)
        result = method(*args, **kwargs)
        if result:
            may_die(after)
        return result

    return run
