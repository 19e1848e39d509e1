"""Job types: a name with the types of its input and output, and how its jobs are enqueued."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from inspect import signature
from random import randrange
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.forms import BaseForm

from django_jobchains.conf import get_settings
from django_jobchains.context import capture_context, merge_contexts
from django_jobchains.db.connections import opened_connections
from django_jobchains.db.ids import ChainRefs, chain_ids_of, checked_id, new_id
from django_jobchains.db.times import as_stored, resolve_expiry, resolve_schedule
from django_jobchains.declare.labels import Label, check_label, checked_label
from django_jobchains.declare.limits import TypeLimits
from django_jobchains.declare.policies import Policy, RetryRule, check_function
from django_jobchains.exceptions import (
    ContinuationNotAllowed,
    DuplicateJobType,
    InvalidBlockers,
    InvalidDeclaration,
    InvalidInput,
    InvalidOutput,
    NotAnEntryType,
    ProcessorNotFound,
    RegistryError,
    TransactionRequired,
)
from django_jobchains.handlers.batch import Batch
from django_jobchains.handlers.running_job import Continuation, ContinuationOptions, RunningJob, plain_function
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.models import Chain
from django_jobchains.notifications.wakeups import publish, report_created
from django_jobchains.payloads.codecs import ENCODED_JSON, decode_json
from django_jobchains.payloads.strict_json import decode
from django_jobchains.payloads.types import (
    NOT_ABOUT_THE_VALUE,
    Codec,
    HasTypes,
    OutputT_co,
    PayloadType,
    is_payload_type,
    name_of,
    name_of_type,
)
from django_jobchains.records.processor import RecordRun
from django_jobchains.store import get_store
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.last_jobs import LastJob
from django_jobchains.store.rows import ClaimedJob, CreatedJob, Effects, FailedTry, FinishedJob, NewJob
from django_jobchains.telemetry import observes
from django_jobchains.telemetry.events import ChainCreated, JobCreated
from django_jobchains.telemetry.tracing import start_sending
from django_jobchains.text.errors import describe
from django_jobchains.text.humanize import sentence
from django_jobchains.values import (
    ATTEMPTS_LIMIT,
    FLAG,
    MAX_ATTEMPTS,
    PRIORITY,
    QUEUE,
    TYPE_NAME,
    Choice,
    DurationLike,
    check_options,
)

#: Takes a third of the time of ``json.loads``, which looks for spaces on both sides.
_read = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
#: The id of a deleted job may be used again. Random first lease numbers keep the attempts of both jobs apart.
MAX_FIRST_LEASE = 2**30

#: What cannot stand for a job: a caller who passes it expects the job type to be a plain function of its input.
_INPUTS = (str, int, float, dict, UUID)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: ``JobType("name")`` takes any input.
    InputT = TypeVar("InputT", default=Any)
else:
    from typing import TypeVar

    InputT = TypeVar("InputT")

NewJobT = TypeVar("NewJobT", bound=NewJob)

HandlerMode = Literal["staged", "atomic"]
OnBlockerFailure = Literal["wait", "fail", "run"]

#: The default of parameters that take a type. It has its own type, which satisfies all type checkers.
ANY: Any = Any


class EnqueueOptions(ContinuationOptions, total=False):
    """The keyword arguments of ``enqueue``, except ``using``, documented at ``JobType.item``."""

    deduplicate: Deduplicate | None
    #: ``math.inf``: never give up.
    max_attempts: float | None


@dataclass(slots=True)
class Item(NewJob, Generic[OutputT_co]):
    """A chain to create with ``chains.enqueue_many``, whose input has been checked."""

    job_type: HasTypes[Any, OutputT_co] | None = None


class JobType(HasTypes[InputT, OutputT_co]):
    """The declaration of a kind of job. Jobs of a type without a processor are completed from outside.

    ``input`` and ``output`` are annotations (JSON types, or any type that pydantic supports) or objects with the
    methods of ``PayloadType``. ``entry=False``: no chain may start with this type. ``continues_with``: the names or
    JobTypes that may come next in the chain; None allows all types. ``blockers``: the types of chains that its jobs
    wait for. A tuple has one required type for each position, a list allows any number of chains of its types, and None
    allows all chains. ``on_blocker_failure``: what a job does when a blocker fails or is cancelled: "wait" (the blocker
    may be retried), "fail" or "run". ``upgrade_input``: a function that is called with a stored input that does not fit
    ``input``, as plain JSON, and returns an input that fits. ``completion_form``: a Django form, or its dotted path,
    that completes jobs of this type in the admin. ``label``: distinguishes its jobs where they are listed. It is a
    format string with fields of the input, such as "Order {order_id}", or a function that receives the input.
    """

    #: Whether this is the type of a task of Django's framework.
    is_task = False

    def __init__(
        self,
        name: str,
        *,
        input: type[InputT] | PayloadType[InputT] | UnionType | None = ANY,
        output: type[OutputT_co] | PayloadType[OutputT_co] | UnionType | None = ANY,
        entry: bool = True,
        continues_with: "Iterable[str | JobType[Any, Any]] | None" = None,
        blockers: "Iterable[str | JobType[Any, Any]] | None" = None,
        on_blocker_failure: OnBlockerFailure = "wait",
        upgrade_input: Callable[[Any], Any] | None = None,
        completion_form: type[BaseForm] | str | None = None,
        label: str | Callable[[InputT], object] | None = None,
    ) -> None:
        self.name = checked_name(name)
        with declaration_errors(name):
            Choice(*get_args(OnBlockerFailure)).check("on_blocker_failure", on_blocker_failure)
            FLAG.check("entry", entry)
            if upgrade_input is not None:
                check_function("upgrade_input", upgrade_input, 1, "the stored input")
            self.upgrade_input = upgrade_input
            self.entry = entry
            self.continues_with = _names("continues_with", continues_with)
            self.blockers = _names("blockers", blockers)
            #: The types of required blockers, by position. None if ``blockers`` is a list of accepted types.
            self.blocker_slots = tuple(map(name_of, blockers)) if isinstance(blockers, tuple) else None
            self._slot_types = blockers if isinstance(blockers, tuple) else None
            self.on_blocker_failure = on_blocker_failure
            self.completion_form: type[BaseForm] | str | None = checked_form(completion_form)
            self.label: Label | None = checked_label(label)
            self.input_codec = Codec(input)
            self.output_codec = Codec(output)
            check_label(self.label, self.input_codec.annotation)
        self.processor: Processor | None = None

    def __repr__(self) -> str:
        return f"<JobType {self.name}>"

    def __call__(self, job: RunningJob[InputT, Any, Any]) -> Any:
        """Call the handler directly, as in a unit test. Returns what it returns: await it if it is async."""
        if self.processor is None:
            raise ProcessorNotFound(self.name)
        given: Any = job
        if isinstance(given, _INPUTS):  # Tests may pass any object that stands for a job.
            raise TypeError(
                f"{self.name!r} takes a job when it is called. To start a job with an input, call enqueue()."
            )
        return self.processor.function(job)

    @overload
    def enqueue(
        self: "JobType[None, OutputT_co]", *, using: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> Chain[OutputT_co]: ...
    @overload
    def enqueue(
        self, input: InputT, *, using: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> Chain[OutputT_co]: ...
    def enqueue(
        self, input: Any = None, *, using: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> Chain[OutputT_co]:
        """Start a chain: one INSERT in the caller's transaction, and a wake-up after its commit.

        The options are the keyword arguments of ``item``. The values of ``context.bound`` are stored with the job.
        Raises ``InvalidInput``, ``NotAnEntryType``, ``InvalidBlockers``, ``ChainNotFound`` for an unknown blocker, and
        ``DuplicateJobId`` if a job with the ``id`` exists.
        """
        if options:
            check_options("enqueue", options, EnqueueOptions, "using")
        return create_chains([self._item(input, **options)], using)[0]

    @overload
    async def aenqueue(
        self: "JobType[None, OutputT_co]", *, using: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> Chain[OutputT_co]: ...
    @overload
    async def aenqueue(
        self, input: InputT, *, using: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> Chain[OutputT_co]: ...
    async def aenqueue(
        self, input: Any = None, *, using: str | None = None, **options: Unpack[EnqueueOptions]
    ) -> Chain[OutputT_co]:
        """``enqueue`` for async code."""
        return await sync_to_async(self.enqueue)(input, using=using, **options)

    @overload
    def item(self: "JobType[None, OutputT_co]", **options: Unpack[EnqueueOptions]) -> Item[OutputT_co]: ...
    @overload
    def item(self, input: InputT, **options: Unpack[EnqueueOptions]) -> Item[OutputT_co]: ...
    def item(self, input: Any = None, **options: Unpack[EnqueueOptions]) -> Item[OutputT_co]:
        """Describe a chain without creating it, for ``chains.enqueue_many``.

        ``run_at`` is an aware datetime; ``delay`` is a duration, added to the database's time. The job waits until all
        chains in ``blockers`` are completed. With ``deduplicate``, ``enqueue`` may return an existing chain
        (``chain.deduplicated``). Jobs with a higher ``priority`` run first. ``priority``, ``queue`` and
        ``max_attempts`` default to the values of the processor. With ``max_attempts=math.inf``, there is no limit.
        ``id`` is the id of the new chain and its first job. ``expires`` is an aware datetime, or a duration after the
        job is due: if the job has not started then, it is cancelled. A duration is a number of seconds, a timedelta, or
        a text such as "5m".
        """
        if options:
            check_options("item", options, EnqueueOptions)
        return self._item(input, **options)

    def _item(
        self,
        input: Any,
        *,
        deduplicate: Deduplicate | None = None,
        max_attempts: float | None = None,
        **options: Unpack[ContinuationOptions],
    ) -> Item[OutputT_co]:
        if not self.entry:
            raise NotAnEntryType(self.name)
        item: Item[OutputT_co] = self.new_job(Item, input, **options)
        item.job_type = self
        if max_attempts is not None:
            item.max_attempts = int(min(MAX_ATTEMPTS.check("max_attempts", max_attempts), ATTEMPTS_LIMIT))
        if deduplicate is not None:
            if not isinstance(deduplicate, Deduplicate):
                raise TypeError(f"deduplicate=Deduplicate(key, …), not {type(deduplicate).__name__}.")
            item.deduplicate, item.deduplication_key = deduplicate, deduplicate.stored_key
        return item

    def new_job(
        self,
        kind: type[NewJobT],
        input: Any,
        *,
        run_at: datetime | None = None,
        delay: DurationLike | None = None,
        blockers: ChainRefs = (),
        priority: int | None = None,
        queue: str | None = None,
        id: UUID | str | None = None,
        expires: DurationLike | datetime | None = None,
    ) -> NewJobT:
        """Return the row of a chain's first job, of the class ``kind``, with its input checked and encoded."""
        handler = self.processor
        if queue is None:
            queue = (handler and handler.queue) or get_settings().QUEUE
        else:
            QUEUE.check("queue", queue)
        if priority is None:
            priority = (handler and handler.priority) or 0
        else:
            PRIORITY.check("priority", priority)
        try:
            encoded = self.input_codec.encode(input, InvalidInput)
        except InvalidInput as error:
            raise error.about(f"Input of {self.name!r}") from None
        id_ = new_id() if id is None else checked_id(id, "id", "a uuid.UUID or its string")
        new = kind(
            id=id_,
            chain_id=id_,
            chain_index=0,
            chain_type_name=self.name,
            type_name=self.name,
            queue=queue,
            input=encoded,
            priority=priority,
            context=capture_context(),
            is_task=self.is_task,
        )
        # Most jobs have none of these values, and each argument of the constructor takes time.
        if id is not None:
            new.lease_number = randrange(1, MAX_FIRST_LEASE)  # noqa: S311 - not a secret
        if run_at is not None or delay is not None:
            new.run_at, new.delay_seconds = resolve_schedule(run_at, delay)
        if expires is not None:
            new.expires_at, new.expires_seconds = resolve_expiry(expires, new.run_at)
        if blockers != () or self.blocker_slots:
            new.blockers = self._checked_blockers(blockers)
            new.accepted_blockers, new.blocker_slots = self.blockers, self.blocker_slots
            new.on_blocker_failure = self.on_blocker_failure
        if handler is not None and handler.limits is not None:
            keys = handler.limits.keys(self.name, self.decode_input(encoded))
            new.limit_key, new.concurrency_key, new.rate_key = keys
        return new

    def _checked_blockers(self, given: Any) -> tuple[UUID, ...]:
        """Return the ids of the blockers. Raise ``InvalidBlockers`` unless there is one for each required type."""
        blockers = () if given is None else chain_ids_of(given, "blockers")
        if self.blocker_slots is not None and len(blockers) != len(self.blocker_slots):
            names = ", ".join(self.blocker_slots) or "none"
            raise InvalidBlockers(
                f"{self.name!r} requires {len(self.blocker_slots)} blockers ({names}), not {len(blockers)}. Pass "
                "blockers=[…] with a chain of each of these types, in this order."
            )
        return blockers

    def decode_input(self, text: str | None) -> Any:
        """Return a stored input, upgraded if it does not fit the type; raise ``InvalidInput`` if it still does not fit.

        NULL, which ``update(input=None)`` stores, is read as null. An error in ``upgrade_input`` is also raised as
        ``InvalidInput``, because a retry with the same code would not help.
        """
        text = "null" if text is None else text
        if text.startswith(ENCODED_JSON):
            text = decode_json(text, InvalidInput)
        try:
            return self.input_codec.decode(text, InvalidInput)
        except InvalidInput:
            if self.upgrade_input is None:
                raise
        stored = decode(text, InvalidInput)
        try:
            upgraded = self.upgrade_input(stored)
        except NOT_ABOUT_THE_VALUE:
            raise
        except Exception as error:
            raise InvalidInput(sentence(f"upgrade_input of {self.name!r} failed: {describe(error)}")) from error
        return self.input_codec.validate(upgraded, InvalidInput)

    def encode_output(self, value: Any) -> str:
        try:
            return self.output_codec.encode(value, InvalidOutput)
        except InvalidOutput as error:
            raise error.about(f"Output of {self.name!r}") from None

    def annotate_from(
        self, function: Callable[..., Any], input: Any, output: Any, *, batch_limit: int | None = None
    ) -> None:
        """Read the types that ``input=`` and ``output=`` do not declare from the handler's annotations.

        The annotations of a batch handler do not include an output type.
        """
        result = Any if batch_limit else type_hints(function, include_extras=True).get("return", Any)
        self.input_codec = Codec(input_type(first_annotation(function, include_extras=True)) if input is ANY else input)
        self.output_codec = Codec(output_type(result) if output is ANY else output)
        check_label(self.label, self.input_codec.annotation)

    def check_blockers(self, function: Callable[..., Any], types: "Mapping[str, JobType[Any, Any]]") -> None:
        """Raise ``RegistryError`` if a handler's annotation has other blockers than declared, or another order.

        ``types``: the known types. Names of unknown types fit any annotation.
        """
        try:
            annotated = blocker_types(first_annotation(function)) if self._slot_types else None
        except RegistryError:  # It was raised where the annotations were needed.
            return
        if self._slot_types is None or annotated is None:
            return
        found = [types.get(given) if isinstance(given, str) else given for given in self._slot_types]
        declared = [Any if job_type is None else job_type.output_codec.annotation for job_type in found]
        if len(annotated) == len(declared) and all(map(_fits, declared, annotated)):
            return
        names = ", ".join(map("{!r}: {}".format, self.blocker_slots or (), _chains(declared)))
        raise RegistryError(
            f"{plain_function(function).__qualname__!r} expects the blockers ({', '.join(_chains(annotated))}), but "
            f"blockers= declares ({names}). Annotate it with RunningJob[…, tuple[{', '.join(_chains(declared))}]], or "
            "correct the order of blockers=."
        )


def _fits(declared: Any, annotated: Any) -> bool:
    """Return whether an annotated output fits a declared type. Handlers that only continue have None."""
    if is_payload_type(declared) or declared in (Any, None, NoneType) or annotated in (Any, declared):
        return True
    return isinstance(declared, type) and isinstance(annotated, type) and issubclass(declared, annotated)


def _chains(outputs: Iterable[Any]) -> list[str]:
    return [f"Chain[{name_of_type(output)}]" for output in outputs]


class AttemptObserver:
    """Is notified of the attempts at the jobs of a type, in the worker, also if they run in child processes.

    Methods must not raise errors.
    """

    def observes(self, status: str) -> bool:
        """Return whether a call has an effect: of ``started`` for "running", of ``ended`` for the status of a job."""
        return True

    def started(self, job: ClaimedJob) -> None:
        """An attempt begins. Called on its thread, or for an ``async def`` handler on the thread of ``ended``."""

    def ended(
        self, job: ClaimedJob, row: FinishedJob | FailedTry, status: str, seconds: float, error: BaseException | None
    ) -> None:
        """An attempt has ended its job with this status, and that is committed.

        Called on a thread of the worker for that, which may lag behind. ``row``: what was written. ``error``: why the
        attempt failed.
        """

    def ended_elsewhere(self, job_id: UUID) -> None:
        """A job has ended without an attempt of a live worker, for example after too many crashes."""


@dataclass(frozen=True)
class Processor:
    """The function that handles a job type, with its policies. The policies of the slice are the defaults."""

    job_type: JobType[Any, Any]
    function: Callable[[Any], Any]
    mode: HandlerMode
    policies: tuple[Policy, Policy]
    retry: RetryRule
    queue: str | None
    priority: int | None
    #: The limit of jobs in a ``Batch``, or None if the function takes a single ``RunningJob``.
    batch_limit: int | None = None
    #: The name of the type of the chain that is enqueued when a job fails.
    on_failure: str | None = None
    middleware: tuple[Middleware[Any], ...] = ()
    #: Whether the handler runs on the worker's event loop.
    is_async: bool = False
    observer: AttemptObserver | None = None
    #: None for a type without limits that hold for all workers together.
    limits: TypeLimits | None = None

    @property
    def handler(self) -> Any:
        """The function, also if a partial or a callable object was registered."""
        return plain_function(self.function)


def new_continuation(
    job: ClaimedJob | LastJob,
    job_type: JobType[Any, Any] | None,
    target: JobType[Any, Any],
    input: Any,
    options: ContinuationOptions,
) -> NewJob:
    """Return the row of the job that follows ``job``. ``job_type`` is the type of ``job``, None if it is not declared.

    Raise ``ContinuationNotAllowed``, and ``TypeError`` for an unknown option.
    """
    if job_type and job_type.continues_with is not None and target.name not in job_type.continues_with:
        raise ContinuationNotAllowed(job_type.name, target.name, job_type.continues_with)
    check_options("continue_with", options, ContinuationOptions)
    new = target.new_job(NewJob, input, **options)
    new.chain_id, new.chain_index = job.chain_id, job.chain_index + 1
    new.chain_type_name, new.deduplication_key = job.chain_type_name, job.deduplication_key
    new.schedule_name, new.scheduled_for = job.schedule_name, job.scheduled_for
    new.context = merge_contexts(job.context, new.context)
    handler = target.processor
    if options.get("queue") is None and not (handler and handler.queue):
        new.queue = job.queue
    if options.get("priority") is None and not (handler and handler.priority is not None):
        new.priority = job.priority
    return new


@contextmanager
def declaration_errors(name: "str | JobType[Any, Any]") -> Iterator[None]:
    """Name the job type in errors of its declaration, which are raised when its app is loaded."""
    try:
        yield
    except (InvalidDeclaration, DuplicateJobType):
        raise
    except (RegistryError, TypeError, ValueError) as error:
        raise InvalidDeclaration(name_of(name), error) from error


def _names(argument: str, types: "Iterable[str | JobType[Any, Any]] | None") -> frozenset[str] | None:
    if isinstance(types, str | JobType):
        types = [types]
    if types is None:
        return None
    try:
        return frozenset(map(name_of, types))
    except TypeError as error:
        raise TypeError(f"{argument}={types!r:.100}: pass a list of job types or their names. {error}") from error


def create_chains(items: Sequence[Item[OutputT_co]], using: str | None = None) -> list[Chain[OutputT_co]]:
    """Create chains in the caller's transaction, in order, with a constant number of statements."""
    # The chains are not read. A deduplicated chain has its own input, which is read when it is needed.
    created: list[Chain[OutputT_co]] = []
    try:
        rows, alias = create_first_jobs(items, using), get_store(using).using
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(
            "In async code, enqueue with 'await job_type.aenqueue(…)' or 'await chains.aenqueue_many(…)'."
        ) from error
    for item, row in zip(items, rows, strict=True):
        chain: Chain[OutputT_co] = Chain.partly_known(alias)
        chain.id, chain.type_name = row.id, item.type_name
        chain.created_at = as_stored(row.created_at, alias)
        chain.job_type = item.job_type
        if row.is_deduplicated:
            chain.deduplicated, chain.replaced = True, row.is_replaced
        elif not row.is_replaced:
            chain.input = _read(item.input, 0)[0]
            chain.schedule_name = item.schedule_name
            chain.scheduled_for = item.scheduled_for and as_stored(item.scheduled_for, alias)
        created.append(chain)
    return created


def create_first_jobs(items: Sequence[Item[Any]], using: str | None = None) -> list[CreatedJob]:
    """Create the first jobs of chains, as ``create_chains`` does."""
    store = get_store(using)
    if not items:
        return []
    connection = connections[store.using]
    _check_transaction(connection)
    # Only items whose id the caller has chosen have a lease number. Such an id may exist already, and the savepoint
    # keeps the caller's transaction usable after that error.
    is_guarded = connection.in_atomic_block and any(item.lease_number for item in items)
    guard = transaction.atomic(store.using) if is_guarded else nullcontext()
    effects, sent = Effects(), start_sending(items, store.chains.contexts)
    with guard:
        rows = store.jobs.create(items, effects)
    publish(store.using, effects)
    if sent is not None or observes(JobCreated, ChainCreated):
        fresh = [item for item, row in zip(items, rows, strict=True) if not row.is_deduplicated]
        replaced = {
            item.id: row.id for item, row in zip(items, rows, strict=True) if row.is_deduplicated and row.is_replaced
        }
        report_created(store.using, fresh, effects, sent, replaced)
    return rows


def _check_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise ``TransactionRequired``, or warn, if the settings do not allow an enqueue on this connection now."""
    settings = get_settings()
    may_have_another = settings.OTHER_TRANSACTION != "ignore" and len(connections.settings) > 1
    if not (settings.REQUIRE_TRANSACTION or may_have_another) or _is_in_atomic(connection):
        return
    if not (connection.in_atomic_block or connection.get_autocommit()):  # A transaction that Django does not manage.
        return
    if settings.REQUIRE_TRANSACTION:
        raise TransactionRequired(connection.alias)
    for other in opened_connections():
        if _is_in_atomic(other):
            error = TransactionRequired(connection.alias, other.alias)
            if settings.OTHER_TRANSACTION == "error":
                raise error
            # The line that calls ``JobType.enqueue`` or ``chains.enqueue_many``, which call ``create_chains``, or the
            # ``enqueue`` of a task, which calls that of its backend.
            warnings.warn(str(error), RuntimeWarning, stacklevel=5)
            return


def _is_in_atomic(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an atomic block is open, other than the blocks around a ``TestCase`` and its tests."""
    return any(not block._from_testcase for block in connection.atomic_blocks)  # type: ignore[attr-defined]


def checked_name(name: object) -> str:
    """Return the name of a new job type; raise ``RegistryError`` if it is not valid."""
    if callable(name):
        raise RegistryError("register() takes the name of the job type first: @processors.register('app.name').")
    try:
        checked = TYPE_NAME.check("name", name)
    except ValueError as error:
        raise RegistryError(str(error)) from error
    if any(map(str.isspace, checked)):
        raise RegistryError(f"name={checked!r:.100} has a space in it: use dots, as in 'app.send_mail'.")
    return checked


def checked_form(form: object) -> Any:
    """Return a Django form class or the dotted path of one; raise ``ValueError`` for anything else."""
    is_class = isinstance(form, type) and issubclass(form, BaseForm)
    if not (form is None or is_class or (isinstance(form, str) and "." in form)):
        raise ValueError(f"completion_form={form!r:.100}: a form class, or its dotted path as in 'shop.forms.Decide'.")
    return form


# The types in the annotations of handlers


#: The position of the context among the types of an annotation.
_PLACES_OF_CONTEXT: dict[Any, int] = {RunningJob: 2, Batch: 1, RecordRun: 0}


def first_annotation(function: Callable[..., Any], *, include_extras: bool = False) -> Any:
    """Return the annotation of the parameter that takes the job, or None."""
    hints = type_hints(function, include_extras=include_extras)
    return hints.get(next(iter(signature(function).parameters)))


def type_hints(function: Callable[..., Any], *, include_extras: bool = False) -> dict[str, Any]:
    """Return the annotations of a function, with ``Annotated`` only if ``include_extras`` is true."""
    function = plain_function(function)
    try:
        return get_type_hints(function, include_extras=include_extras)
    except NameError as error:
        raise RegistryError(
            f"The annotations of {function.__qualname__!r} cannot be read: {error}. Import the name at run time too, "
            "or pass input= and output= to register()."
        ) from error


def input_type(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return input_type(annotation.__origin__)
    arguments = get_args(annotation) if get_origin(annotation) in (RunningJob, Batch) else ()
    return Any if not arguments or isinstance(arguments[0], TypeVar) else arguments[0]


def blocker_types(annotation: Any) -> list[Any] | None:
    """Return the output types of the chains in ``RunningJob[…, tuple[Chain[…], …]]``, or None without such a tuple."""
    arguments = get_args(annotation) if get_origin(annotation) is RunningJob else ()
    chains = get_args(arguments[1]) if len(arguments) > 1 and get_origin(arguments[1]) is tuple else ()
    return None if not chains or Ellipsis in chains else [next(iter(get_args(chain)), Any) for chain in chains]


def check_context(function: Callable[..., Any], middleware: Iterable[Middleware[Any]]) -> None:
    """Raise ``RegistryError`` if a handler's or a hook's annotation needs context that no middleware provides."""
    try:
        needed = [part for annotation in type_hints(function).values() for part in _context_of(annotation)]
    except RegistryError:  # It is raised again where the annotations are needed.
        return
    provided = {part.provides for part in middleware}
    if missing := " and a ".join(part.__qualname__ for part in needed if part not in provided):
        raise RegistryError(
            f"{plain_function(function).__qualname__!r} needs a {missing}, which no middleware provides before it: add "
            "a subclass of Middleware[…] with this type to Processors(middleware=[…])."
        )


def _context_of(annotation: Any) -> list[type]:
    """Return the classes that an annotation needs from middleware, such as ``RunningJob[…, …, Tenant | Client]``."""
    place = _PLACES_OF_CONTEXT.get(get_origin(annotation))
    given = () if place is None else get_args(annotation)[place : place + 1]
    parts = get_args(given[0]) if given and get_origin(given[0]) in (Union, UnionType) else given
    return [part for part in parts if isinstance(part, type) and part not in (Any, NoneType)]


def output_type(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return Annotated[output_type(annotation.__origin__), *annotation.__metadata__]
    if get_origin(annotation) not in (Union, UnionType):
        return NoneType if annotation is Continuation else annotation
    rest = tuple(part for part in get_args(annotation) if part is not Continuation)
    return Union[rest]  # noqa: UP007 - the members are values
