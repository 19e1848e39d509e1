"""A job type: a name with the types of its input and output, and how jobs of it are enqueued."""

import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from random import randrange
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import transaction

from django_jobchains.announcing import announce
from django_jobchains.batches import Batch
from django_jobchains.conf import get_settings
from django_jobchains.context import captured, merged
from django_jobchains.deduplication import Deduplicate
from django_jobchains.exceptions import (
    ContinuationNotAllowed,
    DuplicateJobType,
    InvalidDeclaration,
    InvalidInput,
    InvalidOutput,
    NotAnEntryType,
    ProcessorNotFound,
    RegistryError,
)
from django_jobchains.ids import chain_ids_of, new_id
from django_jobchains.models import QUEUE_LENGTH, TYPE_NAME_LENGTH, Chain
from django_jobchains.payloads import Codec
from django_jobchains.policies import check_max_attempts
from django_jobchains.running import Continuation, ContinuationOptions, RunningJob
from django_jobchains.schedules import when
from django_jobchains.store import ClaimedJob, CreatedJob, Effects, NewJob, Tail, get_store

if TYPE_CHECKING:
    from django_jobchains.processors import Processor

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")

OnBlockerFailure = Literal["wait", "fail", "run"]

#: A deleted job's id may be given again; the attempts of both must not have one lease number.
MOST_FIRST_LEASE = 2**30

#: "Not given", typed so that it fits every parameter.
_ANY: Any = Any
_NO_INPUT: Any = None


class JobType(Generic[InputT, OutputT]):
    """A declared kind of job. It may have no processor: then its jobs are completed from outside.

    ``input`` and ``output`` are annotations (JSON types, or what pydantic takes). ``entry=False``: may only be
    continued to. ``continues_with``: the names or JobTypes allowed next, ``blockers``: those of the chains that its
    jobs may wait for; None allows any. ``on_blocker_failure``: what a job does when such a chain fails or is cancelled:
    "wait" (it may be retried), "fail" or "run".
    """

    def __init__(
        self,
        name: str,
        *,
        input: type[InputT] = _ANY,
        output: type[OutputT] = _ANY,
        entry: bool = True,
        continues_with: "Iterable[str | JobType[Any, Any]] | None" = None,
        blockers: "Iterable[str | JobType[Any, Any]] | None" = None,
        on_blocker_failure: OnBlockerFailure = "wait",
    ) -> None:
        self.name = checked_name(name)
        with declaring(name):
            check_choice("on_blocker_failure", on_blocker_failure, get_args(OnBlockerFailure))
            check_choice("entry", entry, (True, False))
            self.entry = entry
            self.continues_with = _names("continues_with", continues_with)
            self.blockers = _names("blockers", blockers)
            self.on_blocker_failure = on_blocker_failure
            self.input_codec = Codec(input)
            self.output_codec = Codec(output)
        self.processor: Processor | None = None

    def __repr__(self) -> str:
        return f"<JobType {self.name}>"

    def __call__(self, job: RunningJob[InputT]) -> OutputT:
        """Calls the handler as the plain function it is, for unit tests."""
        if self.processor is None:
            raise ProcessorNotFound(self.name)
        result: OutputT = self.processor.function(job)
        return result

    def enqueue(
        self,
        input: InputT = _NO_INPUT,
        *,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        blockers: Sequence[Chain | UUID] = (),
        deduplicate: Deduplicate | None = None,
        priority: int | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        id: UUID | None = None,
        using: str | None = None,
    ) -> Chain:
        """Starts a chain: one INSERT in the caller's transaction, and a wake-up after its commit.

        What is bound (``context.bound``) goes along. ``delay`` is a timedelta or seconds, counted by the database. The
        job waits until all chains in ``blockers`` are completed. With ``deduplicate`` it may return a chain that exists
        (``chain.deduplicated``). A higher ``priority`` runs first. Raises ``InvalidInput``, ``NotAnEntryType``,
        ``InvalidBlockers``, ``ChainNotFound`` for an unknown blocker, and ``DuplicateJobId`` for an ``id`` that exists.
        """
        item = self.item(
            input,
            run_at=run_at,
            delay=delay,
            blockers=blockers,
            deduplicate=deduplicate,
            priority=priority,
            queue=queue,
            max_attempts=max_attempts,
            id=id,
        )
        return create_chains([item], using)[0]

    async def aenqueue(self, input: InputT = _NO_INPUT, **options: Any) -> Chain:
        """``enqueue`` for async code; the same keyword arguments."""
        return await sync_to_async(self.enqueue)(input, **options)

    def item(
        self,
        input: InputT = _NO_INPUT,
        *,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        blockers: Sequence[Chain | UUID] = (),
        deduplicate: Deduplicate | None = None,
        priority: int | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        id: UUID | None = None,
    ) -> "Item":
        """Describes a chain without creating it, for ``chains.enqueue_many``. The arguments of ``enqueue``."""
        if not self.entry:
            raise NotAnEntryType(self.name)
        check_max_attempts(max_attempts)
        job = self.new_job(
            input,
            new_id() if id is None else id,
            run_at=run_at,
            delay=delay,
            blockers=blockers,
            priority=priority,
            queue=queue,
        )
        job.max_attempts = max_attempts
        if id is not None:
            job.lease_number = randrange(MOST_FIRST_LEASE)  # noqa: S311 - no secret
        if deduplicate is not None:
            if not isinstance(deduplicate, Deduplicate):
                raise TypeError(f"deduplicate=Deduplicate(key, …), not {type(deduplicate).__name__}.")
            job.deduplicate, job.deduplication_key = deduplicate, deduplicate.stored_key
        return Item(job, has_given_id=id is not None)

    def new_job(
        self,
        input: Any,
        id: UUID,
        *,
        run_at: datetime | None = None,
        delay: timedelta | float | None = None,
        blockers: Sequence[Chain | UUID] | None = (),
        priority: int | None = None,
        queue: str | None = None,
    ) -> NewJob:
        """The row of a first job, its input encoded and checked."""
        if not isinstance(id, UUID):
            raise TypeError(f"id must be a uuid.UUID, not {type(id).__name__}.")
        run_at, delay_seconds = when(run_at, delay)
        return NewJob(
            id=id,
            chain_id=id,
            chain_index=0,
            chain_type_name=self.name,
            type_name=self.name,
            queue=checked_queue(self._queue() if queue is None else queue),
            input=self.input_codec.encode(input, InvalidInput),
            priority=checked_priority(self._priority() if priority is None else priority),
            run_at=run_at,
            delay_seconds=delay_seconds,
            blockers=() if blockers is None else chain_ids_of(blockers, "blockers"),
            accepted_blockers=self.blockers,
            on_blocker_failure=self.on_blocker_failure,
            context=captured(),
        )

    def _queue(self) -> str:
        own = self.processor.queue if self.processor else None
        return get_settings().QUEUE if own is None else own

    def _priority(self) -> int:
        own = self.processor.priority if self.processor else None
        return 0 if own is None else own

    def encode_output(self, value: Any) -> str:
        return self.output_codec.encode(value, InvalidOutput)

    def annotate_from(
        self, function: Callable[..., Any], input: Any, output: Any, *, batch_limit: int | None = None
    ) -> None:
        """Takes what ``input=`` and ``output=`` leave open from the handler's annotations; a batch's handler has none
        of the output."""
        result = Any if batch_limit else _hints(function).get("return", Any)
        self.input_codec = Codec(_input_of(first_annotation(function)) if input is _ANY else input)
        self.output_codec = Codec(_output_of(result) if output is _ANY else output)


class AsyncJobType(JobType[InputT, OutputT]):
    """A job type whose processor is an ``async def`` function: ``await job_type(job)`` in unit tests."""

    def __call__(self, job: RunningJob[InputT]) -> Coroutine[Any, Any, OutputT]:  # type: ignore[override]
        return super().__call__(job)  # type: ignore[return-value]


@dataclass(frozen=True)
class Item:
    """One chain to create, its input already checked."""

    job: NewJob
    has_given_id: bool


def create_chains(items: Sequence[Item], using: str | None = None) -> list[Chain]:
    """Creates chains in the caller's transaction, in order, in a constant number of statements."""
    store = get_store(using)
    if not items:
        return []
    if bound := captured():  # what was bound where an item was described counts more
        for item in items:
            item.job.context = merged(bound, item.job.context)
    # A given id may exist: the savepoint keeps the caller's transaction usable after the error.
    is_guarded = store.connection.in_atomic_block and any(item.has_given_id for item in items)
    guard = transaction.atomic(store.using) if is_guarded else nullcontext()
    effects = Effects()
    with guard:
        created = store.create([item.job for item in items], effects)
    announce(store.using, effects)
    return [_chain(item.job, row, store.using) for item, row in zip(items, created, strict=True)]


def _chain(job: NewJob, row: CreatedJob, using: str) -> Chain:
    """A chain of which not all was read yet; that of another's job has an input of its own."""
    if row.is_deduplicated:
        chain = Chain.partly_known(using, id=row.id, type_name=job.type_name, created_at=row.created_at)
        chain.deduplicated = True
        return chain
    return Chain.partly_known(
        using, id=row.id, type_name=job.type_name, input=json.loads(job.input), created_at=row.created_at
    )


def new_continuation(
    job: "ClaimedJob | Tail",
    own: JobType[Any, Any] | None,
    target: JobType[Any, Any],
    input: Any,
    options: ContinuationOptions,
) -> NewJob:
    """The row of the job that comes after ``job``; ``own`` is the type of that, None when no app declares it."""
    if own is not None and own.continues_with is not None and target.name not in own.continues_with:
        raise ContinuationNotAllowed(own.name, target.name, own.continues_with)
    known = ContinuationOptions.__annotations__
    if unknown := ", ".join(sorted(options.keys() - known.keys())):
        raise TypeError(f"continue_with() does not take the argument {unknown}. It takes {', '.join(known)}.")
    new = target.new_job(input, new_id(), **options)
    new.chain_id, new.chain_index = job.chain_id, job.chain_index + 1
    new.chain_type_name, new.deduplication_key = job.chain_type_name, job.deduplication_key
    new.context = merged(job.context, new.context)
    handler = target.processor
    if options.get("queue") is None and not (handler and handler.queue):
        new.queue = checked_queue(job.queue)
    if options.get("priority") is None and not (handler and handler.priority is not None):
        new.priority = job.priority
    return new


@contextmanager
def declaring(name: "str | JobType[Any, Any]") -> Iterator[None]:
    """Name the job type in the errors of its declaration, which are raised when an app is loaded."""
    try:
        yield
    except (InvalidDeclaration, DuplicateJobType):
        raise
    except (RegistryError, TypeError, ValueError) as error:
        raise InvalidDeclaration(name_of(name), error) from error


def checked_name(name: object) -> str:
    """Return the name of a new job type; raises ``RegistryError`` for anything else."""
    if callable(name):
        raise RegistryError("register() takes the name of the job type first: @processors.register('app.name').")
    if not isinstance(name, str) or not 0 < len(name) <= TYPE_NAME_LENGTH or not name.isprintable():
        raise RegistryError(
            f"{name!r} is not a name for a job type: pass 1 to {TYPE_NAME_LENGTH} printable characters."
        )
    return name


def check_choice(argument: str, given: object, choices: Sequence[object]) -> None:
    """Raises ``ValueError`` for what is not one of the choices: 1 and ``True`` are not the same one."""
    if not any(given is choice or (isinstance(given, str) and given == choice) for choice in choices):
        raise ValueError(f"{argument}={given!r:.50} is not one of {', '.join(map(repr, choices))}.")


def _names(argument: str, types: "Iterable[str | JobType[Any, Any]] | None") -> frozenset[str] | None:
    if isinstance(types, str | JobType):
        types = [types]
    if types is None:
        return None
    try:
        return frozenset(map(name_of, types))
    except TypeError as error:
        raise TypeError(f"{argument}={types!r:.100}: pass a list of job types or their names. {error}") from error


def name_of(job_type: "str | JobType[Any, Any]") -> str:
    """Return the name of a job type, or the name itself. Raises ``TypeError`` for anything else."""
    given: object = job_type.name if isinstance(job_type, JobType) else job_type
    if isinstance(given, str):
        return given
    raise TypeError(f"A job type is given as a JobType or by its name, not as {type(given).__name__}: {given!r:.100}.")


def checked_queue(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > QUEUE_LENGTH or not name.isprintable():
        raise ValueError(f"{name!r} is not a valid queue name: use 1 to {QUEUE_LENGTH} printable characters.")
    return name


def checked_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not -32_768 <= priority <= 32_767:
        raise ValueError(f"priority={priority!r}: a whole number from -32768 to 32767; higher runs first.")
    return priority


def plain_function(function: Any) -> Any:
    """The function behind a partial or a callable object, which carries the annotations."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


def first_annotation(function: Callable[..., Any]) -> Any:
    """Of the parameter that takes the job, None without one."""
    return _hints(function).get(next(iter(inspect.signature(function).parameters)))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    function = plain_function(function)
    try:
        return get_type_hints(function)
    except NameError as error:
        raise RegistryError(
            f"The annotations of {function.__qualname__} cannot be read: {error}. Import the name at run time too, or "
            "pass input= and output= to register()."
        ) from error


def _input_of(annotation: Any) -> Any:
    arguments = get_args(annotation) if get_origin(annotation) in (RunningJob, Batch) else ()
    return Any if not arguments or isinstance(arguments[0], TypeVar) else arguments[0]


def _output_of(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return NoneType if annotation is Continuation else annotation
    rest = tuple(part for part in get_args(annotation) if part is not Continuation)
    return Union[rest]  # noqa: UP007 - built from values
