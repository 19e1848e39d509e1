"""Hooks around a handler and its phases: when they run, in which order, on which thread, and for which slice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.utils import translation

from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import Middleware
from django_jobchains.models import Job
from django_jobchains.processors import Processors, Registry, RescheduleJob, RunningJob
from django_jobchains.testing import run_due_jobs
from tests.attempts.work import Work, committed
from tests.middleware.recording import Telling, slice_with
from tests.shop.models import Effect

pytestmark = committed


def test_the_first_in_the_list_is_the_outermost_in_every_phase(work: Work) -> None:
    seen: list[str] = []
    processors = slice_with(Telling("outer", seen), Telling("inner", seen))

    @processors.register("phases")
    def phases(job: RunningJob[Any]) -> None:
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


def test_an_atomic_handler_runs_inside_prepare_inside_the_handlers_hook(work: Work) -> None:
    seen: list[str] = []
    processors = slice_with(Telling("it", seen))

    @processors.register("atomic", mode="atomic")
    def atomic(job: RunningJob[Any]) -> None:
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


def test_the_hooks_of_the_phases_run_when_the_row_is_locked(work: Work) -> None:
    locked: list[bool] = []

    class Looking(Middleware):
        @contextmanager
        def around_complete(self, job: RunningJob[Any]) -> Iterator[None]:
            locked.append(job.signal.is_row_locked)
            yield

        around_prepare = around_complete

    processors = slice_with(Looking())

    @processors.register("phases")
    def phases(job: RunningJob[Any]) -> None:
        locked.append(job.signal.is_row_locked)
        with job.prepare():
            pass
        with job.complete():
            pass

    phases.enqueue()
    work(processors)
    assert locked == [False, True, True]


@pytest.mark.postgresql
def test_a_local_setting_of_the_hook_holds_in_the_phase_and_not_after_it(work: Work) -> None:
    class Tenant(Middleware):
        @contextmanager
        def around_complete(self, job: RunningJob[Any]) -> Iterator[None]:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL application_name = 'tenant-1'")
            yield

        around_prepare = around_complete

    names: list[str] = []

    def look() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW application_name")
            names.append(cursor.fetchone()[0])

    processors = slice_with(Tenant())

    @processors.register("look")
    def looking(job: RunningJob[Any]) -> None:
        with job.prepare():
            look()
        look()
        with job.complete():
            look()

    looking.enqueue()
    work(processors)
    assert names == ["tenant-1", names[1], "tenant-1"]
    assert names[1] != "tenant-1"


def test_a_hook_runs_on_the_thread_of_the_handler_and_sees_its_input(work: Work) -> None:
    seen: list[tuple[int, Any]] = []

    class Looking(Middleware):
        @contextmanager
        def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
            seen.append((threading.get_ident(), job.input))
            yield

    processors = slice_with(Looking())

    @processors.register("look")
    def look(job: RunningJob[Any]) -> None:
        seen.append((threading.get_ident(), job.input))

    look.enqueue({"order": 7})
    work(processors)
    assert seen[0] == seen[1] == (seen[0][0], {"order": 7})


def test_what_a_hook_writes_after_the_handler_is_part_of_its_completion(work: Work) -> None:
    class Writing(Middleware):
        @contextmanager
        def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
            yield
            Effect.objects.create(job_id=job.id, label="audit")
            if job.input == "break":
                raise RuntimeError("broken after the write")

    processors = slice_with(Writing())

    @processors.register("write")
    def write(job: RunningJob[str]) -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="own")

    kept, undone = write.enqueue("keep"), write.enqueue("break")
    work(processors)
    assert (kept.refresh().status, undone.refresh().status) == ("completed", "pending")
    assert sorted(Effect.objects.values_list("job_id", "label")) == [(kept.id, "audit"), (kept.id, "own")]


def test_a_slice_has_its_own_middleware(work: Work) -> None:
    seen: list[str] = []
    watched, plain = slice_with(Telling("watched", seen)), slice_with()

    @watched.register("watched")
    def first(job: RunningJob[Any]) -> None:
        pass

    @plain.register("plain")
    def second(job: RunningJob[Any]) -> None:
        seen.append("plain")

    second.enqueue()
    first.enqueue()
    work(watched, plain, slots=1)
    assert seen == ["plain", "> watched handler", "< watched handler"]


def test_what_middleware_puts_into_the_context_is_there_for_the_handler_and_gone_in_the_next_attempt(
    work: Work,
) -> None:
    class Client(Middleware):
        @contextmanager
        def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
            assert job.context == {}
            job.context["client"] = object()
            yield

    processors = Processors(middleware=[Client()])
    clients: list[object] = []

    @processors.register("call")
    def call(job: RunningJob[Any]) -> None:
        clients.append(job.context["client"])
        if job.attempt == 1:
            raise RescheduleJob(delay=0)

    chain = call.enqueue()
    work(processors)
    assert chain.refresh().status == "completed"
    assert len(set(map(id, clients))) == len(clients) == 2


def test_the_testing_kit_runs_middleware(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> None:
    seen: list[str] = []
    processors = slice_with(Telling("it", seen))

    @processors.register("kit")
    def kit(job: RunningJob[Any]) -> None:
        pass

    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    kit.enqueue()
    run_due_jobs(raise_errors=True)
    assert seen == ["> it handler", "< it handler"]


def test_what_a_handler_sets_in_its_context_is_gone_in_the_next_attempt_on_its_thread(work: Work) -> None:
    languages: list[str] = []
    processors = slice_with()

    @processors.register("speak")
    def speak(job: RunningJob[Any]) -> None:
        languages.append(translation.get_language())
        translation.activate("fr")

    speak.enqueue()
    speak.enqueue()
    work(processors, slots=1)
    assert languages == ["en-us", "en-us"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([Middleware], r"holds the class Middleware: give an instance, Middleware\(\)"),
        ([print], "no middleware: subclass"),
        (Middleware(), "give a list"),
        (None, "give a list"),
    ],
)
def test_what_is_no_middleware_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        Processors(middleware=wrong)


def test_a_hook_without_the_decorator_is_an_error_that_says_so(work: Work) -> None:
    class Forgetful(Middleware):
        def around_handler(self, job: RunningJob[Any]) -> Any:
            yield

    processors = slice_with(Forgetful())

    @processors.register("never")
    def never(job: RunningJob[Any]) -> None:
        raise AssertionError("it ran")

    chain = never.enqueue()
    work(processors)
    job = Job.objects.get(pk=chain.id)
    assert job.status == "pending"
    assert job.last_error is not None
    assert "around_handler() returned a generator, not a context manager: is @contextmanager missing?" in job.last_error
