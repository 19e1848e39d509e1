"""Limits of tasks, whose keys are parameters of their functions."""

from collections import Counter

import pytest
from django.test import override_settings

from django_jobchains import Concurrency, Rate, chains
from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import Job
from django_jobchains.store import get_store
from django_jobchains.store.deduplication import TENANT_SEPARATOR as SEPARATOR
from django_jobchains.tasks_backend.framework import InvalidTask, task_backends
from django_jobchains.worker.caretakers import Unblocker
from tests.support.waiting import stays, until
from tests.support.workers import completed
from tests.tasks_backend import tasks
from tests.tasks_backend.backends import BACKEND

OBSERVATION_SECONDS = 0.3


def with_options(**options):
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}})


def by_length(arguments):
    return len(arguments["tenant"])


def keys():
    return [
        key and key.partition(SEPARATOR)[2]
        for key in Job.objects.order_by("id").values_list("concurrency_key", flat=True)
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("key", "expected"),
    [("tenant", ["acme", "acme", "b"]), ("region", ["eu", "us", "eu"]), (by_length, ["4", "4", "1"])],
)
def test_a_key_is_an_argument_however_it_is_passed(key, expected):
    with with_options(concurrency=Concurrency(2, key=key)):
        tasks.sync.enqueue("acme", 1, 2)
        tasks.sync.enqueue(tenant="acme", region="us")
        tasks.sync.enqueue("b", other=3)
    assert keys() == expected


@pytest.mark.django_db
def test_a_key_may_be_a_keyword_argument_that_is_not_declared():
    with with_options(concurrency=Concurrency(2, key="other")):
        tasks.sync.enqueue("acme", other=3)
        with pytest.raises(InvalidInput, match=r"The concurrency of 'tests.tasks_backend.tasks.sync' has no key"):
            tasks.sync.enqueue("acme")
    assert keys() == ["3"]


@pytest.mark.django_db
def test_arguments_that_the_task_does_not_take_have_no_key():
    with with_options(concurrency=Concurrency(2, key="first")):
        with pytest.raises(InvalidInput, match=r"cannot be called with these arguments: missing a required .*'first'"):
            tasks.add.enqueue()
        assert not Job.objects.exists()
    with with_options(concurrency=Concurrency(2)):  # Without a key, the task fails when it runs, as without a limit.
        tasks.add.enqueue()
    assert Job.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options", [{"fair": "tenant"}, {"concurrency": Concurrency(2, key="tenant")}, {"rate": Rate(1, 60, key="tenant")}]
)
def test_the_key_of_a_limit_is_a_parameter_of_the_task(options):
    with with_options(**options):
        with pytest.raises(InvalidTask, match=r"'tenant' is the key of a limit, .* It has first, second\.$"):
            tasks.add.using(priority=1)
        with pytest.raises(InvalidTask, match=r"It has none\.$"):
            tasks.task(tasks.plain)
        tasks.sync.enqueue("acme")
    assert Job.objects.get().limit_key


@pytest.mark.django_db
def test_limits_of_one_task():
    with with_options(concurrency=Concurrency(9), fair="key"):
        task = tasks.task(concurrency=Concurrency(2, group="api"), rate=Rate(5, 1))(tasks.hold.func)
        limits = task.job_type.processor.limits
        assert (limits.concurrency, limits.rate, limits.fair) == (Concurrency(2, group="api"), Rate(5, 1), "key")
        with pytest.raises(InvalidTask, match="Concurrency"):
            tasks.task(concurrency=2)(tasks.hold.func)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 5}, "concurrency=5 is not a Concurrency"),
        ({"rate": 5}, "rate=5 is not a Rate"),
        ({"fair": "a b"}, "fair='a b' is not the name of a field"),
    ],
)
def test_bad_limits_are_found_by_a_check(options, text):
    with with_options(**options):
        [problem] = task_backends["default"].check()
    assert problem.id == "jobchains.E032"
    assert text in problem.msg


def test_workers_keep_the_limit_of_a_task_that_they_find(start_worker, transactional_db):
    with with_options(concurrency=Concurrency(1, key="key")):
        start_worker(slots=4)
        for key in "aab":
            tasks.hold.enqueue(key)
        until(lambda: Counter(tasks.calls) == Counter("ab"))
        assert stays(lambda: len(tasks.calls) == 2, OBSERVATION_SECONDS)
        tasks.gate.set()
        until(lambda: completed() == 3)


def test_another_worker_is_woken_by_a_free_place_of_a_task_that_was_found(start_worker, transactional_db):
    with with_options(concurrency=Concurrency(1, key="key")):
        start_worker(max_jobs=1)
        tasks.hold.enqueue("a")
        until(lambda: tasks.calls)
        start_worker()
        tasks.hold.enqueue("a")
        assert stays(lambda: len(tasks.calls) == 1, OBSERVATION_SECONDS)
        tasks.gate.set()
        until(lambda: completed() == 2)  # long before the next poll


@pytest.mark.django_db
def test_jobs_from_before_a_limit_get_its_keys(make_worker):
    tasks.hold.enqueue("a")
    assert keys() == [None]
    with with_options(concurrency=Concurrency(1, key="key")):
        tasks.hold.job_type  # noqa: B018 - known now
        worker = make_worker()
        Unblocker(worker.components.context, worker.components.heartbeat).step()
        assert keys() == ["a"]


@pytest.mark.django_db
def test_a_task_is_enqueued_as_a_job_type_with_its_limit():
    with with_options(concurrency=Concurrency(1, key="key")):
        chains.enqueue_many([tasks.hold.job_type.item({"args": [], "kwargs": {"key": "a"}})])
        assert keys() == ["a"]
        assert get_store().task_names.read()
