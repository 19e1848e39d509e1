"""The settings: one typed, frozen object, built late from ``settings.JOBCHAINS``; an unknown key is an error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import inf
from typing import Any, Literal

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

#: What is no longer a secret when it is shown; to add to it: ``[*SENSITIVE_FIELDS, "tax_number"]``.
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


@dataclass(frozen=True)
class Settings:
    """Each field is a key of ``JOBCHAINS``. Durations are seconds."""

    #: Alias of the database that holds the job tables.
    DATABASE: str = "default"
    #: Dotted path of the class that keeps the jobs there, a ``store.Store``; None: the one made for the vendor.
    STORE: str | None = None
    #: ``{"BACKEND": dotted path, "OPTIONS": {...}}``; empty: the notifier made for the database's vendor.
    NOTIFIER: Mapping[str, Any] = field(default_factory=dict)
    #: ``STORE`` and ``NOTIFIER`` of other databases with job tables, by alias: ``{"archive": {"NOTIFIER": {...}}}``.
    DATABASES: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Attempts that run at once in one worker.
    SLOTS: int = 10
    #: Attempts of ``async def`` handlers that run at once on a worker's event loop.
    ASYNC_SLOTS: int = 500
    #: Threads for their transactions, and as many again for the queries of Django's async ORM.
    ASYNC_THREADS: int = 10
    #: Queue of jobs that name none.
    QUEUE: str = "default"
    #: How long an idle worker waits before it asks the database again without a wake-up.
    POLL_SECONDS: float = 60
    #: How long a claimed job belongs to its worker without a renewal (renewed at a third of it).
    LEASE_SECONDS: float = 60
    #: How often a worker looks for jobs whose lease ran out.
    REAP_SECONDS: float = 10
    #: How often a worker looks for blocked jobs that wait for nothing.
    SWEEP_SECONDS: float = 60
    #: How often a worker says that it is there; after six that did not come its row is deleted.
    HEARTBEAT_SECONDS: float = 10
    #: Wait before the second try; it is multiplied at each further try, up to the maximum.
    BACKOFF_INITIAL_SECONDS: float = 10
    BACKOFF_MULTIPLIER: float = 2
    BACKOFF_MAXIMUM_SECONDS: float = 300
    #: Share of the wait that is random, 0 to 1.
    BACKOFF_JITTER: float = 0.1
    #: Attempts before a job fails; None: for ever.
    MAX_ATTEMPTS: int | None = None
    #: How long an attempt may take before it is asked to stop; None: for ever.
    TIMEOUT_SECONDS: float | None = None
    #: How long a handler that was asked to stop may go on before its slot counts as stuck and is replaced,
    STUCK_SECONDS: float = 10
    #: and how many such slots of one worker are replaced.
    MAX_STUCK_SLOTS: int = 10
    #: Lost leases (a worker died or hung) before a job fails.
    MAX_CRASHES: int = 10
    #: How long a stopping worker lets running handlers end by themselves.
    SHUTDOWN_SECONDS: float = 30
    #: A part of a worker that is busy with one step for longer makes its liveness probe fail.
    LIVENESS_SECONDS: float = 60
    #: How often a worker looks for chains that are kept no longer, and deletes them; None: never.
    PRUNE_SECONDS: float | None = 60
    #: How long a chain is kept after it ended so; None: for ever.
    RETENTION_COMPLETED_SECONDS: float | None = 30 * 24 * 3600
    RETENTION_CANCELLED_SECONDS: float | None = 30 * 24 * 3600
    RETENTION_FAILED_SECONDS: float | None = None
    #: Whether chains with a deduplication key are kept for ever, as their keys would be free again without them.
    RETENTION_KEEPS_KEYED: bool = True
    #: Classes or dotted paths: a worker does not start while a slice it would run lacks one of these.
    REQUIRED_MIDDLEWARE: Sequence[Any] = ()
    #: Largest encoded input or output.
    MAX_PAYLOAD_BYTES: int = 1024 * 1024
    #: Deepest nesting of an input or output.
    MAX_PAYLOAD_DEPTH: int = 100
    #: Names in inputs, outputs, errors and logs whose values are masked where they are shown; parts of names too.
    SENSITIVE_FIELDS: Sequence[str] = SENSITIVE_FIELDS

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ImproperlyConfigured(f"JOBCHAINS[{name!r}] must be above 0, not {getattr(self, name)!r}.")
        if self.BACKOFF_MULTIPLIER < 1:
            raise ImproperlyConfigured("JOBCHAINS['BACKOFF_MULTIPLIER'] must be 1 or more.")
        if not 0 <= self.BACKOFF_JITTER <= 1:
            raise ImproperlyConfigured("JOBCHAINS['BACKOFF_JITTER'] is a share: 0 to 1.")
        if self.MAX_ATTEMPTS is not None and self.MAX_ATTEMPTS < 1:
            raise ImproperlyConfigured("JOBCHAINS['MAX_ATTEMPTS'] must be 1 or more, or None for no limit.")
        if self.TIMEOUT_SECONDS is not None and not self.TIMEOUT_SECONDS > 0:
            raise ImproperlyConfigured("JOBCHAINS['TIMEOUT_SECONDS'] must be above 0, or None for no limit.")
        for name in _POSITIVE_OR_NEVER:
            value = getattr(self, name)
            if not (value is None or _is_duration(value)):
                raise ImproperlyConfigured(f"JOBCHAINS[{name!r}] must be seconds above 0, or None, not {value!r}.")
        keeps_keyed: object = self.RETENTION_KEEPS_KEYED
        if not isinstance(keeps_keyed, bool):
            raise ImproperlyConfigured(f"JOBCHAINS['RETENTION_KEEPS_KEYED'] is True or False, not {keeps_keyed!r}.")
        _check_names(self.SENSITIVE_FIELDS)
        _check_databases(self.DATABASES, self.DATABASE)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The databases with job tables that the settings name."""
        return (self.DATABASE, *self.DATABASES)

    def of(self, alias: str, key: Literal["STORE", "NOTIFIER"]) -> Any:
        """Return the STORE or NOTIFIER of a database; one that the settings do not name has the defaults."""
        if alias == self.DATABASE:
            return getattr(self, key)
        return self.DATABASES.get(alias, {}).get(key, _DEFAULTS[key])

    def name_of(self, alias: str, key: str) -> str:
        """Return how error messages name that setting."""
        return f"JOBCHAINS[{key!r}]" if alias == self.DATABASE else f"JOBCHAINS['DATABASES'][{alias!r}][{key!r}]"


_DEFAULTS: Mapping[str, Any] = {"STORE": None, "NOTIFIER": {}}
_POSITIVE = (
    "SLOTS",
    "ASYNC_SLOTS",
    "ASYNC_THREADS",
    "POLL_SECONDS",
    "LEASE_SECONDS",
    "REAP_SECONDS",
    "SWEEP_SECONDS",
    "HEARTBEAT_SECONDS",
    "BACKOFF_INITIAL_SECONDS",
    "BACKOFF_MULTIPLIER",
    "BACKOFF_MAXIMUM_SECONDS",
    "STUCK_SECONDS",
    "MAX_STUCK_SLOTS",
    "MAX_CRASHES",
    "SHUTDOWN_SECONDS",
    "LIVENESS_SECONDS",
    "MAX_PAYLOAD_BYTES",
    "MAX_PAYLOAD_DEPTH",
)
_POSITIVE_OR_NEVER = (
    "PRUNE_SECONDS",
    "RETENTION_COMPLETED_SECONDS",
    "RETENTION_CANCELLED_SECONDS",
    "RETENTION_FAILED_SECONDS",
)


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


def _check_names(value: Any) -> None:
    is_list = isinstance(value, list | tuple | set | frozenset)
    if not (is_list and all(isinstance(name, str) and any(map(str.isalnum, name)) for name in value)):
        raise ImproperlyConfigured(
            f"JOBCHAINS['SENSITIVE_FIELDS'] is a list of names, each with a letter or digit, not {value!r}."
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


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings in force now; follows ``override_settings``."""
    given: Mapping[str, Any] = getattr(django_settings, "JOBCHAINS", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"JOBCHAINS must be a dict, not {given!r}.")
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(set(given) - known):
        names = ", ".join(sorted(known))
        raise ImproperlyConfigured(f"Unknown keys in JOBCHAINS: {', '.join(unknown)}. Known: {names}.")
    try:
        return Settings(**given)
    except TypeError as error:
        raise ImproperlyConfigured(f"A value in JOBCHAINS has the wrong type: {error}") from error


def is_set(subject: str) -> bool:
    """Whether the project says something about a subject: ``backoff``, say, by any of ``BACKOFF_…``."""
    prefix = subject.removesuffix("_seconds").upper()
    return any(key == prefix or key.startswith(f"{prefix}_") for key in getattr(django_settings, "JOBCHAINS", {}))


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBCHAINS":
        get_settings.cache_clear()


setting_changed.connect(_forget)
