"""What is refused, when, and with which errors; and the options of backends and tasks."""

import math
from datetime import datetime, timedelta

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from django_jobchains import Backoff, Retention
from django_jobchains.declare.policies import resolve
from django_jobchains.exceptions import InvalidInput
from django_jobchains.isolation import Isolation
from django_jobchains.models import Job
from django_jobchains.tasks_backend.framework import InvalidTask, InvalidTaskBackend, TaskResultStatus, task_backends
from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKEND

pytestmark = pytest.mark.django_db


def with_options(**options):
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, **options}})


def policy_of(task):
    return resolve(*task_backends["default"].slice().type_of(task).processor.policies)


def test_every_feature_is_supported():
    backend = task_backends["default"]
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


@pytest.mark.parametrize("changes", [{"priority": 101}, {"priority": -101}, {"priority": 1.5}, {"queue_name": "other"}])
def test_priorities_and_queues_raise_the_frameworks_error(changes):
    with pytest.raises(InvalidTask):
        tasks.add.using(**changes)


def test_run_after_needs_a_time_zone_where_the_project_uses_them(settings):
    naive = datetime.now() + timedelta(hours=1)  # noqa: DTZ005
    with pytest.raises(InvalidTask, match="aware"):
        tasks.add.using(run_after=naive)
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    result = tasks.add.using(run_after=naive.replace(microsecond=0)).enqueue(1)
    found = tasks.add.get_result(result.id)
    assert result.enqueued_at == found.enqueued_at
    assert found.enqueued_at.tzinfo is None
    assert found.task.run_after == naive.replace(microsecond=0)
    assert not tasks.add.get_result(result.id).is_finished


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), TypeError),
        (b"\xff", ValueError),
        ({1, 2}, TypeError),
        (math.nan, InvalidInput),
        ({math.nan: 1}, InvalidInput),
    ],
)
def test_arguments_that_are_not_json_are_refused(value, error):
    with pytest.raises(error):
        tasks.add.enqueue(value)
    with pytest.raises(error):
        tasks.add.enqueue(1, second=value)
    assert not Job.objects.exists()


def test_arguments_are_normalized():
    result = tasks.add.enqueue((1, b"b"), second={"a": (2,)})
    assert (result.args, result.kwargs) == ([[1, "b"]], {"second": {"a": [2]}})
    assert tasks.add.get_result(result.id).args == result.args


def test_long_names_are_refused_when_they_are_enqueued():
    with with_options(QUEUES=[]):
        task = tasks.add.using(queue_name="q" * 101)  # no error yet
        with pytest.raises(InvalidTask, match="1 to 100 printable characters"):
            task.enqueue(1)
        tasks.add.using(queue_name="q" * 100).enqueue(1)
    alias = "a" * 200
    with override_settings(TASKS={alias: {"BACKEND": BACKEND}}):
        task = tasks.add.using(backend=alias)
        with pytest.raises(InvalidTask, match="1 to 200 printable characters"):
            task.enqueue(1)


def test_a_task_is_not_retried_unless_its_options_say_so():
    assert policy_of(tasks.add).max_attempts == 1
    with override_settings(JOBCHAINS={"MAX_ATTEMPTS": 7}):
        assert policy_of(tasks.add).max_attempts == 1


def test_the_options_of_a_backend():
    options = {"max_attempts": 4, "backoff": 5, "timeout": timedelta(minutes=1), "isolation": "process"}
    with with_options(OPTIONS={**options, "retention": timedelta(days=1)}):
        policy = policy_of(tasks.add)
        processor = task_backends["default"].slice().type_of(tasks.add).processor
    assert (policy.max_attempts, policy.timeout_seconds, policy.isolation) == (4, 60, Isolation("process"))
    assert [policy.backoff.seconds(failures) for failures in (1, 9)] == [5, 5]
    day = timedelta(days=1)
    assert [policy.retention for policy in processor.policies if policy.retention] == [
        Retention(86400, 86400, 86400)
    ], day


def wait_for(failures, error):
    return 3


SLOW = Backoff(60)


@pytest.mark.parametrize("name", ["wait_for", "SLOW"])
def test_a_backoff_by_its_path(name):
    with with_options(OPTIONS={"backoff": f"{__name__}.{name}"}):
        assert policy_of(tasks.add).backoff is globals()[name]


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"backoff": "nowhere.to.find"},
        {"backoff": True},
        {"timeout": -1},
        {"isolation": "x"},
        {"x": 1},
    ],
)
def test_bad_options_are_found_by_a_check_and_refused(options):
    with with_options(OPTIONS=options):
        [problem] = task_backends["default"].check()
        assert problem.id == "jobchains.E032"
        assert "TASKS['default']['OPTIONS']" in problem.msg
        with pytest.raises(InvalidTaskBackend, match="OPTIONS"):
            tasks.add.enqueue(1)


def test_a_text_is_not_a_list_of_queues():
    with with_options(QUEUES="mail"):
        [problem] = task_backends["default"].check()
    assert (problem.id, problem.hint) == ("jobchains.E031", "Write it as a list, as in ['mail'].")
    with with_options(QUEUES=["mail", "q" * 101]):
        [problem] = task_backends["default"].check()
    assert "1 to 100 printable characters" in problem.msg
    with with_options(QUEUES=None):
        [problem] = task_backends["default"].check()
    assert problem.hint == "Write it as a list, as in ['default']."


@pytest.mark.parametrize("queues", [5, None, [["mail"]], [5]])
def test_queues_that_are_not_names_are_found_by_a_check(queues):
    with with_options(QUEUES=queues):
        [problem] = task_backends["default"].check()
    assert problem.id == "jobchains.E031"


def test_good_settings_have_no_problems():
    assert not [problem for backend in task_backends.all() for problem in backend.check()]
    assert not [problem for problem in run_checks() if problem.id and problem.id.startswith("jobchains.E03")]


def test_the_app_must_be_installed(settings):
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "django_jobchains"]
    assert [problem.id for problem in task_backends["default"].check()] == ["jobchains.E030"]


def test_the_options_of_a_task():
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 2, "timeout": 5}}}):
        task = tasks.task(max_attempts=9, backoff=Backoff(1))(tasks.plain)
        policy = resolve(*task.job_type.processor.policies)
        assert (policy.max_attempts, policy.timeout_seconds, policy.backoff) == (9, 5, Backoff(1))
        with pytest.raises(InvalidTask, match="max_attempts"):
            tasks.task(max_attempts=0)(tasks.plain)


def test_two_backends_may_have_different_options_for_one_task():
    other = tasks.add.using(backend="patient")
    result = other.enqueue(1)
    assert result.status == TaskResultStatus.READY
    assert Job.objects.get().type_name == "patient:tests.tasks_backend.tasks.add"
    assert resolve(*other.job_type.processor.policies).max_attempts == 3
    assert resolve(*tasks.add.job_type.processor.policies).max_attempts == 1
