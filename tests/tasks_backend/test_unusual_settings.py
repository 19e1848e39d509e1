"""Processes that do not know tasks: none was enqueued yet, they have used none, or a backend cannot be imported."""

from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command

from django_jobchains import Concurrency, chains, limits
from django_jobchains.processors import Registry
from django_jobchains.testing import clock
from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKENDS


@pytest.fixture
def new_process(monkeypatch):
    """Return a function that forgets all tasks, as in a process that has just started."""
    config = apps.get_app_config("django_jobchains")
    return lambda: monkeypatch.setattr(config, "registry", Registry())


def test_a_worker_ends_if_no_task_was_ever_enqueued(make_worker):
    make_worker().run_until_idle(10)


def test_a_worker_runs_tasks_beside_a_backend_that_cannot_be_imported(run, settings):
    settings.TASKS = {**BACKENDS, "missing": {"BACKEND": "does.not.exist"}}
    result = tasks.add.enqueue(1)
    run()
    result.refresh()
    assert result.return_value == 1


def test_pruning_knows_the_retention_of_tasks(run, new_process, settings):
    settings.TASKS = {"default": {**BACKENDS["default"], "OPTIONS": {"retention": 60}}}
    tasks.add.enqueue(1)
    run()
    new_process()
    assert chains.prune() == 0
    with clock() as now:
        now.advance(61)
        assert chains.prune() == 1


def test_the_list_of_types_has_tasks(transactional_db, registry, new_process):
    tasks.add.enqueue(1)
    new_process()
    output = StringIO()
    call_command("jobchains", "types", stdout=output)
    assert "  tests.tasks_backend.tasks.add\n" in output.getvalue()  # as its handler


def test_a_worker_warns_of_a_pattern_that_no_enqueued_task_matches(transactional_db, registry, new_process):
    tasks.add.enqueue(1)
    new_process()
    errors = StringIO()
    for pattern in ("tests.tasks_backend.tasks.*", "tests.task_backend.tasks.add"):
        call_command("run_jobworker", "--burst", "--type", pattern, stdout=StringIO(), stderr=errors, no_color=True)
    [line] = errors.getvalue().splitlines()
    assert line.startswith("No job type, record worker or enqueued task matches 'tests.task_backend.tasks.add'. Did")


def test_limits_of_tasks_are_listed_and_changed(db, registry, new_process, settings):
    settings.TASKS = {"default": {**BACKENDS["default"], "OPTIONS": {"concurrency": Concurrency(2)}}}
    tasks.add.enqueue(1)
    new_process()
    limits.set("tests.tasks_backend.tasks.add", concurrency=3)
    new_process()
    [limit] = limits.list()
    assert (limit.name, limit.declared_concurrency, limit.concurrency, limit.waiting) == (
        "tests.tasks_backend.tasks.add",
        2,
        3,
        1,
    )
