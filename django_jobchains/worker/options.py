"""The options of a worker, checks of the arguments of ``Worker``, and what the components of a worker share.

Each check raises ``ImproperlyConfigured``, which names the argument.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from logging import getLogger
from typing import TypeVar

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from django_jobchains.attempts.observer_calls import ObserverCalls
from django_jobchains.conf import get_settings
from django_jobchains.db.setup import worker_problem
from django_jobchains.declare import registry as registries
from django_jobchains.declare.policies import AttemptPolicy, Backoff, BackoffFunction, Lease, Policy, resolve, to_lease
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.handlers.job_log import JobLogBuffer
from django_jobchains.isolation import Isolation, Level, to_isolation
from django_jobchains.middleware import Middleware
from django_jobchains.middleware.hooks import required_middleware
from django_jobchains.records.checks import model_problems, shared_tables, table_problems
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store, get_store
from django_jobchains.store.record_tables import RecordTable
from django_jobchains.text.errors import log_text
from django_jobchains.values import QUEUE, Count, DurationLike, Value, did_you_mean
from django_jobchains.worker.attempt_counter import AttemptCounter
from django_jobchains.worker.claim_wait import WakeUp
from django_jobchains.worker.held_leases import HeldJobs, HeldLeases, HeldRecords
from django_jobchains.worker.isolated.messages import is_known_to_children
from django_jobchains.worker.queue_limits import ServedQueues

logger = getLogger("django_jobchains")

ValueT = TypeVar("ValueT")
DefaultT = TypeVar("DefaultT")


@dataclass
class WorkerOptions:
    """The checked options of a worker. ``policies``: by job type served; ``records``: the record workers by name.

    ``queues`` None: every queue. ``slots`` 0: maintenance only. While the worker runs, ``policies`` is replaced when it
    finds another task, and nothing else changes.
    """

    worker: str
    store: Store
    name: str = ""
    registry: Registry = field(default_factory=get_registry)
    policies: Mapping[str, AttemptPolicy] = field(default_factory=dict)
    records: Mapping[str, RecordType] = field(default_factory=dict)
    #: By the names of record workers.
    record_isolations: Mapping[str, Isolation] = field(default_factory=dict)
    queues: tuple[str, ...] | None = None
    #: How many slots may run jobs and records of a queue.
    queue_slots: Mapping[str, int] = field(default_factory=dict)
    slots: int = 1
    async_slots: int = 1
    poll_seconds: float = 1.0
    max_jobs: int | None = None
    #: Whether the project has a backend for tasks of Django's framework.
    has_tasks: bool = False
    #: Whether it finds tasks of Django's framework: those whose type names match ``types``, None for all.
    finds_tasks: bool = False
    types: tuple[str, ...] | None = None
    own_policy: Policy = field(default_factory=Policy)
    #: Served types whose jobs it can only fail, because their tasks cannot be imported here.
    missing: frozenset[str] = frozenset()

    @property
    def shortest_lease_seconds(self) -> float:
        leases = [policy.lease.seconds for policy in self.policies.values()]
        if self.finds_tasks:
            leases.append(resolve(self.own_policy).lease.seconds)
        stalled = [kind.stalled_seconds for kind in self.records.values()]
        return min([*leases, *stalled], default=resolve().lease.seconds)

    @property
    def type_names(self) -> tuple[str, ...]:
        """The names of the job types and record workers. Other workers are to run what is missing here."""
        return tuple(sorted({*self.policies, *self.records} - self.missing))


def checked(kind: Value[ValueT], argument: str, given: object, default: DefaultT) -> ValueT | DefaultT:
    """Return a checked argument, or the default for None."""
    with worker_errors():
        return kind.check_or(argument, given, default)


@contextmanager
def worker_errors() -> Iterator[None]:
    """Translate errors about arguments of ``Worker``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"Worker(): {error}") from error


def check_maintenance_only(**given: object) -> None:
    """Raise ``ImproperlyConfigured`` if an argument about handlers is set."""
    for argument, value in given.items():
        if value:
            raise refused(argument, value, "has no effect with maintenance_only=True, which runs no handlers")


def checked_names(argument: str, given: object, kind: Value[str]) -> tuple[str, ...] | None:
    """Return the names of queues, or of job types and patterns of them. None stands for all of them.

    A string is one name, not a list of characters.
    """
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names:
        raise refused(argument, given, "is not a list of names. Leave it out for all of them")
    with worker_errors():
        return tuple(kind.check(argument, name) for name in names)


def checked_registry(given: object) -> Registry:
    """Return the registry, or the project's for None."""
    if given is not None and not isinstance(given, Registry):
        raise refused("registry", given, "is not a Registry")
    return get_registry() if given is None else given


def checked_store(using: str | None) -> Store:
    """Return the store of a database on which several threads can work."""
    try:
        store = get_store(using)
    except ImproperlyConfigured as error:
        raise ImproperlyConfigured(f"Worker(): {error}") from error
    if problem := worker_problem(store.using):
        raise ImproperlyConfigured(f"A worker cannot use this database. {problem}")
    return store


def check_alias(store: Store) -> None:
    """Raise ``ImproperlyConfigured`` if routers send writes to the worker's database through another alias.

    Handlers would write over another connection, outside of the transaction that completes their job. What cannot be
    compared, for example because a database is unavailable, is logged.
    """
    models = [model for model in apps.get_models() if model._meta.app_label != "django_jobchains"]
    try:
        used = {
            router.db_for_write(model): model._meta.label
            for model in models
            if router.allow_migrate_model(store.using, model)
        }
        others = {alias: label for alias, label in used.items() if _is_alias_of(store, alias)}
    except Exception as error:  # Routers may need a context that only requests and handlers have.
        logger.warning("The aliases that DATABASE_ROUTERS use cannot be checked: %s", log_text(error))
        return
    for alias, label in others.items():
        raise ImproperlyConfigured(
            f"Worker(): using={store.using!r} and {alias!r} are the same database, but DATABASE_ROUTERS send writes of "
            f"{label} to {alias!r}, outside of the transactions in which handlers complete their jobs. Run the worker "
            f"with {alias!r}, or route all models to {store.using!r} in worker processes: see 'Two aliases for one "
            "database' in the guide about several databases."
        )


def _is_alias_of(store: Store, alias: str) -> bool:
    """Return whether this is another alias for the database of the store."""
    both = [connections[alias], store.connection]
    if alias == store.using or both[0].vendor != both[1].vendor:
        return False
    opened = [connection for connection in both if connection.connection is None]
    try:
        return bool(get_store(alias).db.identity() == store.db.identity())
    finally:
        for connection in opened:
            connection.close()


def checked_policy(
    backoff: Backoff | BackoffFunction | None,
    lease: Lease | DurationLike | None,
    max_attempts: float | None,
    timeout: DurationLike | None,
    isolation: Isolation | Level | None,
) -> Policy:
    """Return the worker's own policy, which applies where a job type and its slice set nothing."""
    with worker_errors():
        return Policy(backoff, to_lease(lease), max_attempts, timeout, isolation=to_isolation(isolation))


def served_policies(
    registry: Registry,
    types: Collection[str] | None,
    own: Policy,
    required: Collection[type[Middleware] | str],
    *,
    finds_tasks: bool = False,
) -> dict[str, AttemptPolicy]:
    """Return the policy of each type served, and check that the worker can run jobs of all of them."""
    registry.check()
    policies = _policies(registry, types, own, finds_tasks=finds_tasks)
    names = [*policies, *(kind.name for kind in registry.record_types() if is_served(kind.name, types))]
    if problems := registry.middleware_problems(required_middleware(required), names):
        raise ImproperlyConfigured(f"Required middleware: {problems}. Correct it: Processors(middleware=[…]).")
    if problem := next(registry.failure_problems(), None):
        raise ImproperlyConfigured(f"{problem}.")
    if registry is not get_registry() and any(processor.on_failure for processor in registry.processors()):
        raise ImproperlyConfigured("Worker(): on_failure works for types in the project's registry only.")
    _check_isolated_types(registry, policies)
    return policies


def _policies(
    registry: Registry, types: Collection[str] | None, own: Policy, *, finds_tasks: bool
) -> dict[str, AttemptPolicy]:
    """Return the policy of each type served, from the processor, its slice, the worker, the settings and defaults."""
    policies = {
        processor.job_type.name: resolve(*processor.policies, own)
        for processor in registry.processors()
        if is_served(processor.job_type.name, types)
    }
    names = [kind.name for kind in registry.record_types()]
    if not (policies or finds_tasks) and not any(is_served(name, types) for name in names):
        names += [processor.job_type.name for processor in registry.processors()]
        wanted = ", ".join(types or ["all"])
        known = ", ".join(sorted(names)) or "none"
        nearest = did_you_mean(wanted, names)
        raise ImproperlyConfigured(
            f"No processor to run (types: {wanted}).{nearest} Is its app in INSTALLED_APPS, with a jobs module? "
            f"Registered: {known}."
        )
    return policies


def records_of(
    registry: Registry, types: Collection[str] | None, queues: Collection[str] | None, using: str, *, has_jobs: bool
) -> dict[str, RecordType]:
    """Return the record workers of these types and queues, except those of other databases.

    Raise ``ImproperlyConfigured`` if a column cannot be used, if a requested type belongs to another database, or if
    there is nothing to run.
    """
    wanted = [
        kind
        for kind in registry.record_types()
        if is_served(kind.name, types) and (queues is None or kind.queue in queues)
    ]
    kinds = {kind.name: kind for kind in wanted if kind.is_in(using)}
    elsewhere = [kind.name for kind in wanted if kind.name not in kinds]
    if elsewhere and (set(elsewhere).intersection(types or ()) or not (kinds or has_jobs)):
        raise ImproperlyConfigured(
            f"Worker(): the tables of {', '.join(elsewhere)} are not in the database {using!r}, as DATABASE_ROUTERS "
            "decide. Pass the alias of their database: Worker(using=…), run_jobworker --database."
        )
    if not kinds and not has_jobs:
        raise ImproperlyConfigured(
            f"Nothing to run: no job types, and no records of the queues {', '.join(queues or ())}."
        )
    if problem := next(chain(shared_tables(registry.record_types()), *map(model_problems, kinds.values())), None):
        raise ImproperlyConfigured(f"{problem.msg} {problem.hint}")
    return kinds


def check_record_tables(kinds: Iterable[RecordType], using: str) -> None:
    """Raise ``ImproperlyConfigured`` if the columns of a table have types with which its records cannot be run."""
    for kind in kinds:
        for problem in table_problems(kind, using):
            raise ImproperlyConfigured(f"{problem.msg} {problem.hint}")


def record_tables(options: WorkerOptions) -> dict[str, list[RecordTable]]:
    """Return the tables of the project's records by queue, whether or not the worker serves them."""
    using, tables = options.store.using, defaultdict[str, list[RecordTable]](list)
    for kind in options.registry.record_types():
        if kind.is_in(using):
            tables[kind.queue].append(kind.table(using))
    return tables


def checked_queue_slots(given: object) -> dict[str, int]:
    """Return how many slots may run jobs of a queue."""
    if not isinstance(given, Mapping):
        raise refused("queue_slots", given, 'is not a dict of queues and numbers, as in {"mail": 2}')
    with worker_errors():
        return {QUEUE.check("queue_slots", name): Count().check("queue_slots", slots) for name, slots in given.items()}


def has_task_backends() -> bool:
    """Return whether ``TASKS`` has a backend of ours. Its import has set ``registry.load_task``."""
    if registries.load_task is None:
        return False
    from django_jobchains.tasks_backend import backends

    return bool(backends())


def record_isolations(registry: Registry, records: Mapping[str, RecordType], own: Policy) -> dict[str, Isolation]:
    """Return the isolation of each record worker: from its registration, the worker or the settings."""
    isolations = {name: resolve(Policy(isolation=kind.own_isolation), own).isolation for name, kind in records.items()}
    if any(isolation.is_process for isolation in isolations.values()):
        _check_registry(registry)
    return isolations


def is_served(name: str, types: Collection[str] | None) -> bool:
    return types is None or any(fnmatchcase(name, pattern) for pattern in types)


def _check_isolated_types(registry: Registry, policies: Mapping[str, AttemptPolicy]) -> None:
    """Raise ``ImproperlyConfigured`` if a child process could not find a handler, or the backoff of its type."""
    isolated = {name: policy for name, policy in policies.items() if policy.isolation.is_process}
    if isolated:
        _check_registry(registry)
    for name, policy in isolated.items():
        if not is_known_to_children(policy.backoff, registry.processor(name)):
            raise ImproperlyConfigured(
                f"Worker(): {policy.backoff!r:.100} is the backoff of {name!r}, which runs in child processes, and "
                "these cannot import it. Define it in a module, or pass it to register()."
            )


def _check_registry(registry: Registry) -> None:
    """Raise ``ImproperlyConfigured`` if child processes could not find the handlers."""
    if registry is not get_registry():
        raise ImproperlyConfigured("Worker(): isolation in processes works for types in the project's registry only.")


def refused(argument: str, given: object, problem: str) -> ImproperlyConfigured:
    """Return the error about an invalid argument of ``Worker``."""
    return ImproperlyConfigured(f"Worker(): {argument}={given!r:.100} {problem}.")


class WorkerContext:
    """The options and the shared state of one worker. ``give_up`` is called when a component cannot continue."""

    def __init__(self, options: WorkerOptions, give_up: Callable[[], None] = lambda: None) -> None:
        self.options = options
        self.settings = get_settings()
        self.store = options.store
        #: The id of the worker.
        self.worker = options.worker
        self.give_up = give_up
        self.wake = WakeUp(is_eager=options.max_jobs is not None)
        self.leases = HeldJobs(self.store, self.worker)
        self.record_leases = {
            name: HeldRecords(kind, self.store, self.worker) for name, kind in options.records.items()
        }
        self.held: list[HeldLeases] = [self.leases, *self.record_leases.values()]
        self.queues = ServedQueues(
            self.store, self.held, options.queues, options.queue_slots, partial(record_tables, options)
        )
        self.counter = AttemptCounter(self.store, worker=self.worker, seconds=self.settings.HEARTBEAT_SECONDS)
        self.log_buffer = JobLogBuffer()
        self.observers = ObserverCalls()
        #: By type, the types whose jobs may take the place of one that has ended.
        self.sharing_limits = options.registry.sharing_limits()
        #: The claimed attempts that wait for a slot, by pool.
        self.backlogs: list[Sized] = []
