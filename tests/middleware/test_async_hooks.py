"""Around ``async def`` handlers, async hooks are awaited, and plain ones run on the event loop."""

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from django_jobchains.exceptions import FailJob, InvalidDeclaration, RegistryError
from django_jobchains.middleware import Middleware
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Processors
from django_jobchains.testing import run_due_jobs
from tests.middleware.recording import Recording, processors_with
from tests.records.models import Repository, Upload
from tests.support.attempts import committed
from tests.support.scenario import JOBS, complete, effects, kinds, outside, write

pytestmark = committed

language = ContextVar("language", default="none")


def nothing(*args):
    pass


async def anothing(*args):
    pass


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
        finally:
            language.reset(token)
        assert await Repository.objects.acount() == 1
        self.seen.append("< awaited")


class OnlyAsync(Middleware):
    @asynccontextmanager
    async def aaround_handler(self, job):
        yield


class Both(OnlyAsync):
    def __init__(self, seen):
        self.seen = seen

    @contextmanager
    def around_handler(self, job):
        self.seen.append("plain")
        yield

    @asynccontextmanager
    async def aaround_handler(self, job):
        await asyncio.sleep(0)
        self.seen.append("async")
        yield


@kinds("async", "async record")
def test_an_async_hook_is_awaited_between_the_other_hooks(scenario):
    seen = []
    Repository.objects.create(name="acme")

    def handler(jobs):
        seen.append(f"{language.get()} on {threading.current_thread().name}")
        yield complete(lambda: None)

    scenario = scenario.with_middleware(Recording("outer", seen), Awaiting(seen), Recording("inner", seen))
    scenario.enqueue(handler)
    scenario.run()
    assert scenario.states() == {"completed"}
    loop = seen[1].split(" on ")[1]
    before = ["> outer handler", f"> acme on {loop}", "> inner handler", f"de on {loop}"]
    assert (seen[:4], seen[-3:]) == (before, ["< inner handler", "< awaited", "< outer handler"])


def test_an_async_hook_sees_and_replaces_errors_but_swallows_none(work):
    class Replacing(Middleware):
        @asynccontextmanager
        async def around_handler(self, job):
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


@asynccontextmanager
async def raising_before(job):
    raise RuntimeError("no tenant")
    yield


@asynccontextmanager
async def raising_after(job):
    yield
    raise RuntimeError("no tenant")


@asynccontextmanager
async def hanging(job):
    job.signal.abort("asked")
    await asyncio.Event().wait()
    yield


@contextmanager
def querying(job):
    Repository.objects.count()
    yield


async def undecorated(job):
    yield


@kinds("async", "async record")
@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (raising_before, "RuntimeError: no tenant"),
        (raising_after, "RuntimeError: no tenant"),
        (hanging, "JobAborted: The attempt was asked to stop"),
        (querying, "SynchronousOnlyOperation"),
        (undecorated, "TypeError: Wrong.aaround_handler() returned a async_generator"),
    ],
)
def test_an_error_of_a_hook_fails_the_attempt_and_undoes_its_transaction(scenario, hook, error):
    class Wrong(Middleware):
        def aaround_handler(self, job):
            return hook(job)

    Wrong.__qualname__ = "Wrong"
    scenario = scenario.with_middleware(Wrong())
    scenario.enqueue(lambda jobs: (yield complete(write(jobs, "written"))))
    scenario.run()
    [stored] = scenario.errors()
    assert stored is not None, scenario.states()
    assert stored.startswith(error), stored
    assert effects() == []


@kinds(*JOBS, "record", "async record")
def test_a_class_with_both_hooks_wraps_both_kinds_of_handlers(scenario):
    seen = []
    scenario = scenario.with_middleware(Both(seen))
    scenario.enqueue(lambda jobs: (yield outside(nothing)))
    scenario.run()
    assert seen == ["async" if scenario.kind.startswith("async") else "plain"]


@pytest.mark.parametrize("middleware", [Awaiting([]), OnlyAsync()], ids=["around_handler", "aaround_handler"])
def test_plain_handlers_refuse_middleware_that_has_only_an_async_hook(middleware):
    processors = Processors(middleware=[middleware])
    processors.register("awaited", input=Any, output=Any)(anothing)
    processors.records(Upload, "awaited_record")(anothing)
    for register in (
        processors.register("plain", input=Any, output=Any),
        processors.register("batch", input=Any, output=Any, batch_limit=2),
        processors.records(Upload, "plain_record"),
    ):
        with pytest.raises(InvalidDeclaration, match=r"around_handler\(\) is for 'async def' handlers, and this one"):
            register(nothing)
    assert {*processors.by_name, *processors.record_types} == {"awaited", "awaited_record"}


@pytest.mark.parametrize("hook", ["around_prepare", "around_complete"])
def test_hooks_inside_transactions_cannot_be_async(hook):
    @asynccontextmanager
    async def around(self, job):
        yield

    with pytest.raises(RegistryError, match="is async, but runs in a transaction: use @contextmanager"):
        Processors(middleware=[type("InTransaction", (Middleware,), {hook: around})()])


def test_a_plain_hook_must_not_return_an_async_context_manager(work):
    class Wrong(Middleware):
        def around_handler(self, job):
            return asynccontextmanager(undecorated)(job)

    processors = processors_with(Wrong())
    chain = processors.register("never")(nothing).enqueue()
    work(processors)
    error = Job.objects.get(pk=chain.id).last_error
    assert "a _AsyncGeneratorContextManager" in error
    assert "@asynccontextmanager is for around_handler() of 'async def' handlers" in error


def test_the_testing_kit_awaits_async_hooks(registry):
    seen = []
    processors = processors_with(Awaiting(seen))
    Repository.objects.create(name="acme")
    chain = processors.register("awaits", input=Any, output=Any)(anothing).enqueue()
    processors.records(Upload)(anothing)
    Upload.objects.create()
    registry.add(processors)
    run_due_jobs(raise_errors=True)
    assert (chain.refresh().status, Upload.objects.get().state) == ("completed", "completed")
    assert seen.count("< awaited") == 2
