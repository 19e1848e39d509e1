"""When the tasks of the maintenance thread run."""

import pytest

from django_jobchains.worker.maintenance import PeriodicTask, PeriodicTasks

#: After an error, the thread resets its database connections.
pytestmark = pytest.mark.django_db


class Task(PeriodicTask):
    """A periodic task that counts its runs. It is due again after ``seconds``."""

    def __init__(self, run=lambda: False, seconds=3600):
        self.run = run
        self.seconds = seconds
        self.runs = 0

    def step(self):
        self.runs += 1
        return self.run()


def fail(text):
    raise ValueError(text)


def test_each_task_runs_at_the_start_and_when_it_is_due():
    often, seldom = Task(seconds=0.01), Task()
    tasks = PeriodicTasks(often, seldom)
    for _ in range(3):
        tasks.step()
    assert (often.runs, seldom.runs) == (3, 1)


def test_run_soon_runs_a_task_once_more():
    often, seldom = Task(seconds=0.01), Task()
    tasks = PeriodicTasks(often, seldom)
    tasks.step()
    tasks.run_soon(seldom)
    for _ in range(3):
        tasks.step()
    assert seldom.runs == 2
    assert not tasks.pause.is_set(), "the thread would not wait any more"


def test_run_soon_during_the_task_runs_it_again():
    """The rows that the task should find may have been written after its query."""
    seldom = Task(lambda: seldom.runs == 1 and tasks.run_soon(seldom))
    tasks = PeriodicTasks(seldom, Task(seconds=0.01))
    for _ in range(2):
        tasks.step()
    assert seldom.runs == 2


def test_a_task_with_more_to_do_and_a_task_that_failed_are_due_at_once():
    answers = [lambda: True, lambda: fail("no"), lambda: True]
    seldom = Task(lambda: answers.pop()())
    tasks = PeriodicTasks(seldom)
    tasks.step()
    with pytest.raises(ValueError, match="no"):
        tasks.step()
    tasks.step()
    assert seldom.runs == 3


def test_a_task_that_fails_does_not_keep_others_from_running(caplog):
    each = [Task(), Task(lambda: fail("first")), Task(lambda: fail("second")), Task()]
    tasks = PeriodicTasks(*each)
    for _ in range(3):
        with pytest.raises(ValueError, match="first"):
            tasks.step()
        for task in each:
            tasks.run_soon(task)
    assert [task.runs for task in each] == [3, 3, 3, 3]
    assert [record.args for record in caplog.records] == [("ValueError: second",)] * 3
