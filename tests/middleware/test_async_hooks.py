"""Around ``async def`` handlers, async hooks are awaited, and plain ones run on the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from django.apps import apps

from django_jobchains.exceptions import FailJob, InvalidDeclaration, RegistryError
from django_jobchains.middleware import Middleware
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Processors
from django_jobchains.testing import run_due_jobs
from tests.middleware.recording import Recording, processors_with
from tests.records.models import Repository, Upload
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed

language = ContextVar("language", default="none")


class Awaiting(Middleware):
    """Reads with the async ORM, and sets a context variable for the handler."""

    def __init__(self, seen):
        self.seen = seen

    @asynccontextmanager
    async def around_handler(self, job):
        tenant = await Repository.objects.aget()
        self.seen.append(f"> {tenant.name} on {threading.current_thread().name}")
        token = language.set("de")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"< {type(error).__name__}")
            raise
        finally:
            language.reset(token)
        assert await Repository.objects.acount() == 1
        self.seen.append("< awaited")


class Both(Middleware):
    def __init__(self, seen):
        self.seen = seen

    @contextmanager
    def around_handler(self, job) -> Iterator[None]:
        self.seen.append(f"plain around {job.type_name}")
        yield

    @asynccontextmanager
    async def aaround_handler(self, job) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        self.seen.append(f"async around {job.type_name}")
        yield


class OnlyAsync(Middleware):
    @asynccontextmanager
    async def aaround_handler(self, job) -> AsyncIterator[None]:
        yield


def test_an_async_hook_is_awaited_around_jobs_and_records(work):
    seen = []
    processors = processors_with(Recording("outer", seen), Awaiting(seen), Recording("inner", seen))
    Repository.objects.create(name="acme")

    @processors.register("awaits")
    async def awaits(job):
        seen.append(f"{language.get()} on {threading.current_thread().name}")
        await job.acomplete(lambda: None)

    chain = awaits.enqueue(1)
    work(processors)
    loop = seen[1].split(" on ")[1]
    of_a_job = [
        "> outer handler",
        f"> acme on {loop}",
        "> inner handler",
        f"de on {loop}",
        "> outer complete in a transaction",
        "> inner complete in a transaction",
        "< inner complete",
        "< outer complete",
        "< inner handler",
        "< awaited",
        "< outer handler",
    ]
    assert (chain.refresh().status, seen) == ("completed", of_a_job)

    seen.clear()
    records = processors_with(Recording("outer", seen), Awaiting(seen), Recording("inner", seen))

    @records.records(Upload)
    async def handle(record, run):
        seen.append(f"{language.get()} on {threading.current_thread().name}")
        await run.acomplete(lambda: None)

    Upload.objects.create()
    work(records, poll_seconds=0.05)
    assert Upload.objects.get().state == "completed"
    assert [step.split(" on ")[0] for step in seen] == [step.split(" on ")[0] for step in of_a_job]


def test_an_async_hook_sees_and_replaces_errors_but_swallows_none(work):
    class Replacing(Middleware):
        @asynccontextmanager
        async def around_handler(self, job) -> AsyncIterator[None]:
            try:
                yield
            except KeyError as error:
                await asyncio.sleep(0)
                if job.input == "replace":
                    raise FailJob("no such order") from error

    seen = []
    processors = processors_with(Recording("outer", seen), Replacing())

    @processors.register("fails")
    async def fails(job):
        raise KeyError("order")

    replaced, swallowed = fails.enqueue("replace"), fails.enqueue("swallow")
    work(processors)
    assert replaced.refresh().current_job.last_error == "FailJob: no such order"
    assert swallowed.refresh().current_job.last_error == "KeyError: 'order'"
    assert sorted(seen)[:2] == ["< outer handler: FailJob", "< outer handler: KeyError"]
    traceback = FailedAttempt.objects.get(job_id=swallowed.id).traceback
    assert "Replacing.aaround_handler() swallowed this error." in traceback


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_error_of_an_async_hook_fails_the_attempt_and_undoes_its_transaction(work, place):
    class Raising(Middleware):
        @asynccontextmanager
        async def around_handler(self, job) -> AsyncIterator[None]:
            if place == "before":
                raise RuntimeError("no tenant")
            yield
            raise RuntimeError("no tenant")

    processors = processors_with(Raising())

    @processors.register("writes")
    async def writes(job):
        await job.acomplete(lambda: Effect.objects.create(job_id=job.id, label="written"))

    chain = writes.enqueue()
    work(processors)
    job = chain.refresh().current_job
    assert (job.status, job.last_error, Effect.objects.count()) == ("pending", "RuntimeError: no tenant", 0)


def test_an_abort_cancels_a_hook_that_awaits(work):
    class Hanging(Middleware):
        @asynccontextmanager
        async def around_handler(self, job) -> AsyncIterator[None]:
            job.signal.abort("cancelled")
            await asyncio.Event().wait()
            yield

    processors = processors_with(Hanging())

    @processors.register("never")
    async def never(job):
        raise AssertionError("The handler ran.")

    chain = never.enqueue()
    work(processors)
    assert str(chain.refresh().current_job.last_error).startswith("JobAborted: The attempt was asked to stop")


def test_a_class_with_both_hooks_wraps_both_kinds_of_handlers(work):
    seen = []
    processors = processors_with(Both(seen))

    @processors.register("plain")
    def plain(job): ...

    @processors.register("batch", batch_limit=2)
    def batch(jobs): ...

    @processors.register("awaited")
    async def awaited(job): ...

    for job_type in (plain, batch, awaited):
        job_type.enqueue()
    work(processors)
    assert sorted(seen) == ["async around awaited", "plain around batch", "plain around plain"]


def test_a_plain_hook_that_queries_on_the_event_loop_fails_the_attempt(work):
    class Querying(Middleware):
        @contextmanager
        def around_handler(self, job) -> Iterator[None]:
            Repository.objects.count()
            yield

    processors = processors_with(Querying())

    @processors.register("awaits")
    async def awaits(job):
        raise AssertionError("The handler ran.")

    chain = awaits.enqueue()
    work(processors)
    assert str(chain.refresh().current_job.last_error).startswith("SynchronousOnlyOperation")


@pytest.mark.parametrize("middleware", [Awaiting([]), OnlyAsync()], ids=["around_handler", "aaround_handler"])
def test_plain_handlers_refuse_middleware_that_has_only_an_async_hook(middleware):
    processors = Processors(middleware=[middleware])

    def handle(*args): ...

    async def ahandle(*args): ...

    processors.register("awaited", input=Any, output=Any)(ahandle)
    processors.records(Upload, "awaited record")(ahandle)
    for register in (
        processors.register("plain", input=Any, output=Any),
        processors.register("batch", input=Any, output=Any, batch_limit=2),
        processors.records(Upload, "plain record"),
    ):
        with pytest.raises(InvalidDeclaration, match=r"around_handler\(\) is for 'async def' handlers, and this one"):
            register(handle)
    assert {*processors.by_name, *processors.record_types} == {"awaited", "awaited record"}


@pytest.mark.parametrize("hook", ["around_prepare", "around_complete"])
def test_hooks_inside_transactions_cannot_be_async(hook):
    @asynccontextmanager
    async def around(self, job) -> AsyncIterator[None]:
        yield

    with pytest.raises(RegistryError, match="is async, but runs in a transaction: use @contextmanager"):
        Processors(middleware=[type("InTransaction", (Middleware,), {hook: around})()])


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_hook_returns_must_be_a_context_manager_of_the_right_kind(work, is_async):
    class Undecorated(Middleware):
        async def aaround_handler(self, job):
            yield

        def around_handler(self, job):
            return asynccontextmanager(self.aaround_handler)(job)

    processors = Processors(middleware=[Undecorated()], backoff=Backoff(initial_seconds=100))

    async def ahandle(job): ...

    def handle(job): ...

    chain = processors.register("never")(ahandle if is_async else handle).enqueue()
    work(processors)
    error = str(Job.objects.get(pk=chain.id).last_error)
    kind = "Undecorated.aaround_handler() returned a async_generator" if is_async else "a _AsyncGeneratorContextManager"
    assert kind in error
    assert "@asynccontextmanager is for around_handler() of 'async def' handlers" in error


def test_the_testing_kit_awaits_async_hooks(monkeypatch, registry):
    seen = []
    processors = processors_with(Awaiting(seen), Recording("inner", seen))
    Repository.objects.create(name="acme")

    async def ahandle(*args):
        assert await Repository.objects.acount() == 1

    chain = processors.register("awaits", input=Any, output=Any)(ahandle).enqueue()
    processors.records(Upload)(ahandle)
    Upload.objects.create()
    registry.add(processors)
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    run_due_jobs(raise_errors=True)
    assert (chain.refresh().status, Upload.objects.get().state) == ("completed", "completed")
    assert seen.count("< awaited") == 2
