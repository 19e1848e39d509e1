"""Workers of projects in which no task was enqueued yet, or with backends that cannot be imported."""

from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKENDS


def test_a_worker_ends_if_no_task_was_ever_enqueued(make_worker):
    make_worker().run_until_idle(10)


def test_a_worker_runs_tasks_beside_a_backend_that_cannot_be_imported(run, settings):
    settings.TASKS = {**BACKENDS, "missing": {"BACKEND": "does.not.exist"}}
    result = tasks.add.enqueue(1)
    run()
    result.refresh()
    assert result.return_value == 1
