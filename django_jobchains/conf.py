"""The settings: one typed, frozen object, created on first use from ``settings.JOBCHAINS``."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial, wraps
from typing import Annotated, Any, Literal, TypeVar, get_args

from asgiref.sync import iscoroutinefunction
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections

from django_jobchains.isolation import to_isolation
from django_jobchains.values import (
    FLAG,
    LONG_DURATION,
    QUEUE,
    Choice,
    Count,
    Duration,
    Number,
    Or,
    check_fields,
    did_you_mean,
)

#: The default names whose values are masked. To add one: ``[*SENSITIVE_FIELDS, "tax_number"]``.
SENSITIVE_FIELDS = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "api_key",
    "access_key",
    "private_key",
    "credential",
    "authorization",
    "cookie",
    "session_id",
    "signature",
    "card_number",
    "cvv",
    "cvc",
)


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
OtherTransaction = Literal["warn", "error", "ignore"]
TracePropagation = Literal["parent", "link"]

Flag = Annotated[bool, FLAG]
QueueName = Annotated[str, QUEUE]
Positive = Annotated[int, Count()]
Seconds = Annotated[float, Duration()]
#: How long chains are kept; None for forever.
Kept = Annotated[float | None, Or(LONG_DURATION, None)]


@dataclass(frozen=True)
class Settings:
    """Each field is a key of ``JOBCHAINS``. Durations are seconds."""

    #: Alias of the database that holds the job tables.
    DATABASE: str = "default"
    #: Dotted path of a subclass of ``store.Store`` for this database; None: the default for its vendor.
    STORE: str | None = None
    #: ``{"BACKEND": dotted path, "OPTIONS": {...}}``; empty: the default for the database's vendor.
    NOTIFIER: Mapping[str, Any] = field(default_factory=dict)
    #: ``STORE`` and ``NOTIFIER`` of other databases with job tables, by alias: ``{"archive": {"NOTIFIER": {...}}}``.
    DATABASES: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Attempts that run at the same time in one worker.
    SLOTS: Positive = 10
    #: Attempts of ``async def`` handlers that run at the same time on a worker's event loop.
    ASYNC_SLOTS: Positive = 500
    #: Threads for transactions of async handlers, and the same number for queries of Django's async ORM.
    ASYNC_THREADS: Positive = 10
    #: Whether an enqueue outside of transactions is an error.
    REQUIRE_TRANSACTION: Flag = False
    #: What an enqueue does while a transaction is open on another database only.
    OTHER_TRANSACTION: Annotated[OtherTransaction, Choice(*get_args(OtherTransaction))] = "warn"
    #: The queue of jobs that do not name one.
    QUEUE: QueueName = "default"
    #: How long an idle worker waits before it queries the database without a wake-up.
    POLL_SECONDS: Seconds = 60
    #: How long a lease lasts without a renewal. Workers renew it after a third of this time.
    LEASE_SECONDS: Seconds = 60
    #: How often a worker queries for jobs whose lease has run out.
    REAP_SECONDS: Seconds = 10
    #: How often a worker queries for blocked jobs that have no open blockers.
    SWEEP_SECONDS: Seconds = 60
    #: The interval of a worker's heartbeats. After six missed heartbeats, its row is deleted.
    HEARTBEAT_SECONDS: Seconds = 10
    #: The pause before the first retry. It is multiplied for each further retry, up to the maximum.
    BACKOFF_INITIAL_SECONDS: Seconds = 10
    BACKOFF_MULTIPLIER: Annotated[float, Number(1)] = 2
    BACKOFF_MAXIMUM_SECONDS: Seconds = 3600
    #: The share of the pause that is random, from 0 to 1.
    BACKOFF_JITTER: Annotated[float, Number(0, 1)] = 0.1
    #: Dotted path of a function that returns the pause instead: see ``declare.policies.BackoffFunction``.
    BACKOFF: str | None = None
    #: Failed attempts before a job fails; ``math.inf`` for no limit.
    MAX_ATTEMPTS: Annotated[float, Or(Count(), math.inf)] = 25
    #: How long an attempt may take before it is asked to stop; ``math.inf`` for no limit.
    TIMEOUT_SECONDS: Annotated[float, Or(Duration(), math.inf)] = math.inf
    #: Where handlers run: "thread", "process", "transient" or an ``Isolation``.
    ISOLATION: Any = "thread"
    #: How long a handler may continue after it was asked to stop, before its slot counts as stuck and is replaced.
    STUCK_SECONDS: Seconds = 10
    #: How many stuck slots of one worker are replaced.
    MAX_STUCK_SLOTS: Positive = 10
    #: How many crashes fail a job: leases that expired, because a worker died or hung, and child processes that died.
    #: Also how often a stalled record is queued again, by default.
    MAX_CRASHES: Positive = 10
    #: How long a stopping worker waits for running handlers.
    SHUTDOWN_SECONDS: Seconds = 30
    #: How long one step of a worker's thread may take before the liveness probe fails.
    LIVENESS_SECONDS: Seconds = 60
    #: How often a worker deletes chains at the end of their retention; None for never.
    PRUNE_SECONDS: Annotated[float | None, Or(Duration(), None)] = 60
    #: How long chains are kept after they have ended with this status; None for forever.
    RETENTION_COMPLETED_SECONDS: Kept = 30 * 24 * 3600
    RETENTION_CANCELLED_SECONDS: Kept = 30 * 24 * 3600
    RETENTION_FAILED_SECONDS: Kept = None
    #: Whether chains are kept longer while their deduplication key can match them, so that it is not used again.
    RETENTION_KEEPS_KEYED: Flag = True
    #: A type is failing if this share of its recent attempts failed, and there were at least this many. None for never.
    ALERT_FAILURE_RATE: Annotated[float | None, Or(Number(0, 1), None)] = 0.5
    ALERT_MIN_ATTEMPTS: Positive = 20
    #: How many of its jobs must have failed in an hour to be a problem; None for never.
    ALERT_FAILED_JOBS: Annotated[int | None, Or(Count(), None)] = 1
    #: A queue is falling behind if one of its jobs has been due for longer.
    ALERT_DUE_SECONDS: Seconds = 300
    #: Classes or dotted paths. A worker does not start if one of its slices lacks one of them.
    REQUIRED_MIDDLEWARE: Sequence[Any] = ()
    #: The largest encoded input or output.
    MAX_PAYLOAD_BYTES: Positive = 1024 * 1024
    #: The deepest nesting of an input or output.
    MAX_PAYLOAD_DEPTH: Positive = 100
    #: ``{"BACKEND": dotted path of a PayloadCodec, "OPTIONS": {...}}``; empty: payloads are stored as they are.
    PAYLOAD_CODEC: Mapping[str, Any] = field(default_factory=dict)
    #: How attempts continue the trace of an enqueue: "parent", one trace for a chain; "link", a trace for each attempt.
    TRACE_PROPAGATION: Annotated[TracePropagation, Choice(*get_args(TracePropagation))] = "parent"
    #: Whether OpenTelemetry's baggage is stored with jobs and passed to handlers.
    TRACE_BAGGAGE: Flag = False
    #: The address of a trace, linked on a job's page in the admin: "https://traces.example.com/trace/{trace_id}".
    TRACE_URL: str | None = None
    #: Names, or parts of names, whose values are masked wherever inputs, outputs, errors and logs are shown.
    SENSITIVE_FIELDS: Sequence[str] = SENSITIVE_FIELDS

    def __post_init__(self) -> None:
        try:
            check_fields(self, "JOBCHAINS[{!r}]")
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(str(error)) from error
        backoff: object = self.BACKOFF
        if not (backoff is None or isinstance(backoff, str)):
            raise _invalid("BACKOFF", "the dotted path of a function, or None", backoff)
        url: object = self.TRACE_URL
        if not (url is None or (isinstance(url, str) and "{trace_id}" in url)):
            raise _invalid("TRACE_URL", "an address with {trace_id} in it, or None", url)
        _check_isolation(self.ISOLATION)
        _check_codec(self.PAYLOAD_CODEC)
        _check_notifier("JOBCHAINS['NOTIFIER']", self.NOTIFIER)
        _check_names(self.SENSITIVE_FIELDS)
        _check_databases(self.DATABASES, self.DATABASE)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The aliases of the databases with job tables."""
        return (self.DATABASE, *self.DATABASES)

    def of(self, alias: str, key: Literal["STORE", "NOTIFIER"]) -> Any:
        """Return the STORE or NOTIFIER of a database, or the default if the settings do not name the database."""
        if alias == self.DATABASE:
            return getattr(self, key)
        return self.DATABASES.get(alias, {}).get(key, _DEFAULTS[key])

    def name_of(self, alias: str, key: str) -> str:
        """Return the name of that setting for error messages."""
        return f"JOBCHAINS[{key!r}]" if alias == self.DATABASE else f"JOBCHAINS['DATABASES'][{alias!r}][{key!r}]"


_DEFAULTS: Mapping[str, Any] = {"STORE": None, "NOTIFIER": {}}


def _invalid(name: str, expected: str, value: object) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"JOBCHAINS[{name!r}] must be {expected}, not {value!r}.")


def _check_isolation(value: Any) -> None:
    try:
        to_isolation(value)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"JOBCHAINS['ISOLATION']: {error}") from error
    if value is None:
        raise _invalid("ISOLATION", "a level such as 'thread', or an Isolation", value)


def _check_codec(value: Any) -> None:
    is_complete = isinstance(value, Mapping) and ("BACKEND" in value or not value)
    if not (is_complete and value.keys() <= {"BACKEND", "OPTIONS"}):
        # The value is not quoted, because it may contain keys.
        raise ImproperlyConfigured(
            "JOBCHAINS['PAYLOAD_CODEC'] must be {'BACKEND': dotted path, 'OPTIONS': {…}}, or empty for none."
        )


def _check_notifier(name: str, value: Any) -> None:
    is_dict = isinstance(value, Mapping)
    if not (is_dict and isinstance(value.get("BACKEND"), str | None) and isinstance(value.get("OPTIONS", {}), Mapping)):
        raise ImproperlyConfigured(
            f"{name} must be {{'BACKEND': dotted path, 'OPTIONS': {{…}}}}, or empty for the database's default, not "
            f"{value!r:.100}."
        )


def _check_names(value: Any) -> None:
    is_list = isinstance(value, list | tuple | set | frozenset)
    if not (is_list and all(isinstance(name, str) and any(map(str.isalnum, name)) for name in value)):
        raise ImproperlyConfigured(
            f"JOBCHAINS['SENSITIVE_FIELDS'] must be a list of names, each with a letter or digit, not {value!r}."
        )


def _check_databases(value: Any, main: str) -> None:
    if not (isinstance(value, Mapping) and all(isinstance(part, Mapping) for part in value.values())):
        raise ImproperlyConfigured(
            f"JOBCHAINS['DATABASES'] must be a dict of dicts, {{alias: {{'NOTIFIER': {{…}}}}}}, not {value!r}."
        )
    if main in value:
        raise ImproperlyConfigured(
            f"JOBCHAINS['DATABASES'] has an entry for {main!r}, which is JOBCHAINS['DATABASE']. "
            "Set JOBCHAINS['STORE'] and JOBCHAINS['NOTIFIER'] for it instead."
        )
    for alias, part in value.items():
        if unknown := ", ".join(sorted(map(str, part.keys() - _DEFAULTS.keys()))):
            known = ", ".join(sorted(_DEFAULTS))
            raise ImproperlyConfigured(f"Unknown keys in JOBCHAINS['DATABASES'][{alias!r}]: {unknown}. Known: {known}.")
        _check_notifier(f"JOBCHAINS['DATABASES'][{alias!r}]['NOTIFIER']", part.get("NOTIFIER", {}))


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the current settings. Follows ``override_settings``."""
    values: Mapping[str, Any] = getattr(django_settings, "JOBCHAINS", {})
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(f"JOBCHAINS must be a dict, not {values!r}.")
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(map(str, set(values) - known)):
        names, nearest = ", ".join(sorted(known)), did_you_mean(unknown[0].upper(), known)
        raise ImproperlyConfigured(f"Unknown keys in JOBCHAINS: {', '.join(unknown)}.{nearest} Known: {names}.")
    try:
        return Settings(**values)
    except TypeError as error:
        raise ImproperlyConfigured(f"A value in JOBCHAINS has the wrong type: {error}") from error


#: The alias of the innermost ``use_database``, or of the worker whose attempt this is; None for ``DATABASE``.
bound_database: ContextVar[str | None] = ContextVar("jobchains_database", default=None)


def current_database() -> str:
    """Return the alias of the database that is used here if ``using`` is not passed.

    It is the one of ``use_database``; in a handler, the database of its job; otherwise ``JOBCHAINS["DATABASE"]``.
    """
    return bound_database.get() or get_settings().DATABASE


#: The entered blocks of ``with scope:``, the innermost last. By context, because threads and tasks may share a scope.
_entered: ContextVar[tuple[AbstractContextManager[None], ...]] = ContextVar("jobchains_entered", default=())


class Scope(AbstractContextManager[None]):
    """A context manager that can also decorate functions, including async ones.

    With ``contextlib.contextmanager`` alone, the block of a decorated async function would end before it runs.
    """

    def __init__(self, block: Callable[[], AbstractContextManager[None]]) -> None:
        self._block = block

    def __enter__(self) -> None:
        block = self._block()
        block.__enter__()
        _entered.set((*_entered.get(), block))

    def __exit__(self, *error: Any) -> bool | None:
        *outer, block = _entered.get()
        _entered.set(tuple(outer))
        return block.__exit__(*error)

    def __call__(self, function: FunctionT) -> FunctionT:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._block():
                return function(*args, **kwargs)

        @wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            with self._block():
                return await function(*args, **kwargs)

        return acall if iscoroutinefunction(function) else call  # type: ignore[return-value]


def use_database(alias: str) -> Scope:
    """Use this database in the block wherever ``using`` is not passed. Can also be used as a decorator.

    Like ``context.bound``, it applies to code that is awaited or called through ``sync_to_async``, but not to threads
    that you start. Raises ``ImproperlyConfigured`` if ``DATABASES`` has no such alias.
    """
    return Scope(partial(_database_bound, alias))


@contextmanager
def _database_bound(alias: str) -> Iterator[None]:
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        raise ImproperlyConfigured(f"use_database({alias!r}): there is no such alias in DATABASES. Known: {known}.")
    token = bound_database.set(alias)
    try:
        yield
    finally:
        bound_database.reset(token)


def is_set(subject: str) -> bool:
    """Return whether the project sets any key for a subject, such as ``BACKOFF`` or ``BACKOFF_…`` for ``backoff``."""
    prefix = subject.removesuffix("_seconds").upper()
    return any(key == prefix or key.startswith(f"{prefix}_") for key in getattr(django_settings, "JOBCHAINS", {}))


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBCHAINS":
        get_settings.cache_clear()


setting_changed.connect(_on_setting_changed)
