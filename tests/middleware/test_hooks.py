"""The hooks around a handler and its phases: their order, their thread, and the handlers they apply to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.apps import apps
from django.db import connection
from django.utils import translation

from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import Middleware
from django_jobchains.models import Job
from django_jobchains.processors import Processors, RescheduleJob
from django_jobchains.testing import run_due_jobs
from tests.middleware.recording import Recording, processors_with
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


def test_first_middleware_is_the_outermost_in_every_phase(work):
    seen = []
    processors = processors_with(Recording("outer", seen), Recording("inner", seen))

    @processors.register("phases")
    def phases(job):
        seen.append("handler")
        with job.prepare():
            seen.append("prepare")
        seen.append("between")
        with job.complete():
            seen.append("complete")
        seen.append("after")

    chain = phases.enqueue()
    work(processors)
    assert chain.refresh().status == "completed"
    assert seen == [
        "> outer handler",
        "> inner handler",
        "handler",
        "> outer prepare in a transaction",
        "> inner prepare in a transaction",
        "prepare",
        "< inner prepare",
        "< outer prepare",
        "between",
        "> outer complete in a transaction",
        "> inner complete in a transaction",
        "complete",
        "< inner complete",
        "< outer complete",
        "after",
        "< inner handler",
        "< outer handler",
    ]


def test_atomic_handler_runs_inside_the_hooks_of_handler_and_prepare(work):
    seen = []
    processors = processors_with(Recording("it", seen))

    @processors.register("atomic", mode="atomic")
    def atomic(job):
        seen.append("handler")
        with job.complete():
            seen.append("complete")

    chain = atomic.enqueue()
    work(processors)
    assert chain.refresh().status == "completed"
    assert seen == [
        "> it handler",
        "> it prepare in a transaction",
        "handler",
        "> it complete in a transaction",
        "complete",
        "< it complete",
        "< it prepare",
        "< it handler",
    ]


def test_hooks_of_the_phases_run_while_the_row_is_locked(work):
    locked = []

    class Reading(Middleware):
        @contextmanager
        def around_complete(self, job) -> Iterator[None]:
            locked.append(job.signal.is_row_locked)
            yield

        around_prepare = around_complete

    processors = processors_with(Reading())

    @processors.register("phases")
    def phases(job):
        locked.append(job.signal.is_row_locked)
        with job.prepare():
            pass
        with job.complete():
            pass

    phases.enqueue()
    work(processors)
    assert locked == [False, True, True]


@pytest.mark.postgresql
def test_local_setting_of_a_hook_ends_with_its_phase(work):
    class Tenant(Middleware):
        @contextmanager
        def around_complete(self, job) -> Iterator[None]:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL application_name = 'tenant-1'")
            yield

        around_prepare = around_complete

    names = []

    def read_setting():
        with connection.cursor() as cursor:
            cursor.execute("SHOW application_name")
            names.append(cursor.fetchone()[0])

    processors = processors_with(Tenant())

    @processors.register("reads")
    def reads(job):
        with job.prepare():
            read_setting()
        read_setting()
        with job.complete():
            read_setting()

    reads.enqueue()
    work(processors)
    assert names == ["tenant-1", names[1], "tenant-1"]
    assert names[1] != "tenant-1"


def test_hook_runs_on_the_thread_of_the_handler_and_can_read_the_input(work):
    seen = []

    class Reading(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            seen.append((threading.get_ident(), job.input))
            yield

    processors = processors_with(Reading())

    @processors.register("reads")
    def reads(job):
        seen.append((threading.get_ident(), job.input))

    reads.enqueue({"order": 7})
    work(processors)
    assert seen[0] == seen[1] == (seen[0][0], {"order": 7})


def test_writes_of_a_hook_after_the_handler_are_committed_with_the_completion(work):
    class Writing(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            yield
            Effect.objects.create(job_id=job.id, label="audit")
            if job.input == "break":
                raise RuntimeError("broken after the write")

    processors = processors_with(Writing())

    @processors.register("write")
    def write(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="own")

    kept, rolled_back = write.enqueue("keep"), write.enqueue("break")
    work(processors)
    assert (kept.refresh().status, rolled_back.refresh().status) == ("completed", "pending")
    assert sorted(Effect.objects.values_list("job_id", "label")) == [(kept.id, "audit"), (kept.id, "own")]


def test_middleware_applies_only_to_its_own_processors(work):
    seen = []
    watched, plain = processors_with(Recording("watched", seen)), processors_with()

    @watched.register("watched")
    def first(job):
        pass

    @plain.register("plain")
    def second(job):
        seen.append("plain")

    second.enqueue()
    first.enqueue()
    work(watched, plain, slots=1)
    assert seen[:2] == ["plain", "> watched handler"]
    assert seen.count("plain") == 1


def test_values_that_middleware_adds_to_the_context_last_for_one_attempt(work):
    class Client(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            assert job.context == {}
            job.context["client"] = object()
            yield

    processors = Processors(middleware=[Client()])
    clients = []

    @processors.register("call")
    def call(job):
        clients.append(job.context["client"])
        if job.attempt == 1:
            raise RescheduleJob(delay=0)

    chain = call.enqueue()
    work(processors)
    assert chain.refresh().status == "completed"
    assert len(set(map(id, clients))) == len(clients) == 2


def test_testing_kit_runs_middleware(monkeypatch, registry):
    seen = []
    processors = processors_with(Recording("it", seen))

    @processors.register("kit")
    def kit(job):
        pass

    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    kit.enqueue()
    run_due_jobs(raise_errors=True)
    assert (seen[0], seen[-1]) == ("> it handler", "< it handler")


def test_context_variables_that_a_handler_sets_end_with_its_attempt(work):
    languages = []
    processors = processors_with()

    @processors.register("translates")
    def translates(job):
        languages.append(translation.get_language())
        translation.activate("fr")

    translates.enqueue()
    translates.enqueue()
    work(processors, slots=1)
    assert languages == ["en-us", "en-us"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([Middleware], r"holds the class Middleware: give an instance, Middleware\(\)"),
        ([print], "not middleware: subclass"),
        (Middleware(), "give a list"),
        (None, "give a list"),
    ],
)
def test_middleware_must_be_a_list_of_instances(wrong, message):
    with pytest.raises(RegistryError, match=message):
        Processors(middleware=wrong)


def test_error_for_a_hook_without_contextmanager_suggests_it(work):
    class Undecorated(Middleware):
        def around_handler(self, job):
            yield

    processors = processors_with(Undecorated())

    @processors.register("never")
    def never(job):
        raise AssertionError("The handler ran.")

    chain = never.enqueue()
    work(processors)
    job = Job.objects.get(pk=chain.id)
    assert job.status == "pending"
    assert job.last_error is not None
    assert "around_handler() returned a generator, not a context manager: is @contextmanager missing?" in job.last_error
