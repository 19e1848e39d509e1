"""Middleware provides context by its class, and start-up finds handlers and middleware that need another."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from django_jobchains.exceptions import InvalidDeclaration, RegistryError
from django_jobchains.middleware import LogContext, Middleware
from django_jobchains.models import Job
from django_jobchains.processors import Backoff, Batch, JobType, Processors, RunningJob
from django_jobchains.records import RecordProcessor, RecordRun
from tests.records.models import Upload
from tests.support.attempts import committed

if TYPE_CHECKING:
    from tests.middleware.recording import Job as Unimported

pytestmark = committed


@dataclass(frozen=True)
class Tenant:
    slug: str


@dataclass(frozen=True)
class Client:
    tenant: Tenant


class Tenants(Middleware[Tenant]):
    def __init__(self, slug: Any = "acme") -> None:
        self.slug = slug

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[Tenant]:
        yield Tenant(self.slug) if isinstance(self.slug, str) else self.slug

    @contextmanager
    def around_complete(self, job: RunningJob[Any, Any, Tenant]) -> Iterator[None]:
        assert Tenants.of(job).slug == self.slug
        yield


class SpecialTenants(Tenants):
    """Inherits what it provides."""


class Clients(Middleware[Client]):
    @contextmanager
    def around_handler(self, job: RunningJob[Any, Any, Tenant]) -> Iterator[Client]:
        yield Client(Tenants.of(job))

    @asynccontextmanager
    async def aaround_handler(self, job: RunningJob[Any, Any, Tenant]) -> AsyncIterator[Client]:
        yield Client(Tenants.of(job))


BOTH = (LogContext(), Tenants(), Clients())
EXPECTED = (Tenant("acme"), Client(Tenant("acme")))
HINT = r"which no middleware provides before it: add a subclass of Middleware\[…\] with this type"


def test_handlers_and_later_middleware_get_the_context(work):
    seen: dict[str, Any] = {}
    processors = Processors(middleware=BOTH)

    @processors.register("plain")
    def plain(job: RunningJob[None, Any, Tenant | Client]) -> None:
        seen["plain"] = Tenants.of(job), Clients.of(job)

    @processors.register("batch", batch_limit=2)
    def batch(jobs: Batch[None, Tenant | Client]) -> None:
        seen["batch"] = Tenants.of(jobs), Clients.of(jobs)

    @processors.register("awaited")
    async def awaited(job: RunningJob[None, Any, Tenant | Client]) -> None:
        seen["awaited"] = Tenants.of(job), Clients.of(job)

    @processors.records(Upload)
    def handle(record: Upload, run: RecordRun[Tenant | Client]) -> None:
        seen["record"] = Tenants.of(run), Clients.of(run)

    for job_type in (plain, batch, awaited):
        job_type.enqueue()
    Upload.objects.create()
    work(processors, poll_seconds=0.05)
    assert seen == dict.fromkeys(("plain", "batch", "awaited", "record"), EXPECTED)


def test_attempts_do_not_share_it(work):
    seen: list[str] = []

    class Numbered(Middleware[Tenant]):
        @contextmanager
        def around_handler(self, job: RunningJob[str]) -> Iterator[Tenant]:
            yield Tenant(job.input)

    processors = Processors(middleware=[Numbered()])

    @processors.register("reads")
    def reads(job: RunningJob[str, Any, Tenant]) -> None:
        seen.append(f"{job.input} {Numbered.of(job).slug}")

    for number in range(5):
        reads.enqueue(str(number))
    work(processors)
    assert sorted(seen) == [f"{number} {number}" for number in range(5)]


def test_another_class_may_provide_the_same_context(work):
    seen: list[str] = []
    for part in (SpecialTenants("special"), Tenants("plain")):
        processors = Processors(middleware=[part])

        @processors.register("reads")
        def reads(job: RunningJob[None, Any, Tenant]) -> None:
            seen.append(SpecialTenants.of(job).slug)

        reads.enqueue()
        work(processors)
    assert seen == ["special", "plain"]


@pytest.mark.parametrize("wrong", [None, Client(Tenant("x"))])
def test_a_hook_that_yields_something_else_fails_the_attempt(work, wrong):
    processors = Processors(middleware=[Tenants(wrong)], backoff=Backoff(initial_seconds=100))

    @processors.register("never")
    def never(job: RunningJob[None]) -> None:
        raise AssertionError("The handler ran.")

    chain = never.enqueue()
    work(processors)
    assert f"Tenants provides a Tenant, but its hook yielded a {type(wrong).__name__}." in str(
        Job.objects.get(pk=chain.id).last_error
    )


def test_what_nobody_has_provided_is_an_error_where_it_is_read(work):
    processors = Processors(backoff=Backoff(initial_seconds=100))

    @processors.register("undeclared")
    def undeclared(job: Any) -> None:
        Tenants.of(job)

    chain = undeclared.enqueue()
    work(processors)
    assert "LookupError: No middleware has provided a Tenant: annotate" in str(chain.refresh().current_job.last_error)


# Start-up finds what is missing.


def plain(job: RunningJob[None, Any, Tenant]) -> None: ...


def batch(jobs: Batch[None, Client | Tenant]) -> None: ...


async def awaited(job: RunningJob[None, Any, Client]) -> None: ...


def with_an_option(job: RunningJob[None, Any, Tenant], option: int) -> None: ...


def record(record: Upload, run: RecordRun[Tenant]) -> None: ...


class OfRecords(RecordProcessor[Upload]):
    async def handle(self, record: Upload, run: RecordRun[Client]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "missing", "options"),
    [
        (plain, "'plain' needs a Tenant", {}),
        (batch, "'batch' needs a Client and a Tenant", {"batch_limit": 5}),
        (awaited, "'awaited' needs a Client", {}),
        (partial(with_an_option, option=1), "'with_an_option' needs a Tenant", {}),
    ],
)
@pytest.mark.parametrize("is_declared", [False, True])
def test_a_handler_is_refused_if_its_slice_lacks_what_it_needs(handler, missing, options, is_declared):
    def register(processors: Processors) -> None:
        name: Any = JobType("needs", input=None, output=Any) if is_declared else "needs"
        processors.register(name, **options)(handler)

    with pytest.raises(InvalidDeclaration, match=f"'needs'.*{missing}, {HINT}"):
        register(Processors(middleware=[LogContext()]))
    register(Processors(middleware=BOTH))


@pytest.mark.parametrize(("handler", "missing"), [(record, "'record' needs a Tenant"), (OfRecords, "needs a Client")])
def test_a_handler_of_records_is_refused_too(handler, missing):
    with pytest.raises(InvalidDeclaration, match=f"{missing}, {HINT}"):
        Processors(middleware=[LogContext()]).records(Upload)(handler)
    Processors(middleware=BOTH).records(Upload)(handler)


def test_middleware_is_refused_unless_an_earlier_one_provides_what_it_needs():
    for wrong in ([Clients()], [Clients(), Tenants()]):
        with pytest.raises(RegistryError, match=rf"'Clients.around_handler' needs a Tenant, {HINT}"):
            Processors(middleware=wrong)


def test_annotations_that_need_nothing_are_accepted():
    processors = Processors()
    T = TypeVar("T")

    def any_context(job: RunningJob[None, Any, Any]) -> None: ...

    def none(job: RunningJob[None, Any, None]) -> None: ...

    def generic(job: RunningJob[None, Any, T]) -> None: ...

    def of_jobs(jobs: Batch[None]) -> None: ...

    for number, handler in enumerate((any_context, none, generic)):
        processors.register(str(number))(handler)
    processors.register("batch", batch_limit=5)(of_jobs)


def test_hooks_whose_annotations_cannot_be_read_are_accepted():
    class Unreadable(Middleware):
        @contextmanager
        def around_handler(self, job: "Unimported") -> Iterator[None]:
            yield

    Processors(middleware=[Unreadable()])


def test_middleware_provides_a_class():
    T = TypeVar("T")

    class Provides(Middleware[T], Generic[T]):
        """Each subclass sets what it provides."""

    class ProvidesNothing(Middleware[None]): ...

    class ProvidesATenant(Provides[Tenant]):
        provides = Tenant

    assert (Provides.provides, ProvidesNothing.provides, ProvidesATenant.provides) == (None, None, Tenant)
    with pytest.raises(RegistryError, match=r"takes a class, such as a dataclass"):

        class Wrong(Middleware[dict[str, int]]): ...
