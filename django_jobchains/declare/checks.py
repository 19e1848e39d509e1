"""System checks: the problem in ``msg``, the remedy in ``hint``."""

from collections.abc import Callable, Container, Iterator
from itertools import chain
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.forms import BaseForm
from django.utils.module_loading import import_string

from django_jobchains.children.limits import limit_problem, start_problem
from django_jobchains.conf import Settings, get_settings
from django_jobchains.db.libpq import missing_network_options
from django_jobchains.declare import registry as registries
from django_jobchains.declare.policies import Policy, backoff_of_settings, resolve
from django_jobchains.declare.registry import Registry, get_registry
from django_jobchains.exceptions import RegistryError
from django_jobchains.isolation import Isolation
from django_jobchains.middleware.hooks import required_middleware
from django_jobchains.models.chain_view import bypasses_row_security, supports_invoker
from django_jobchains.notifications import get_notifier
from django_jobchains.payloads.codecs import get_codec
from django_jobchains.store import get_store

#: How many connections a worker uses in addition to one for each slot.
WORKER_CONNECTIONS = 6
#: How many more it uses if the project has a backend for Django's tasks: to find tasks, and for receivers of signals.
TASK_CONNECTIONS = 2
#: The size of a psycopg pool whose options do not set one.
PSYCOPG_POOL_SIZE = 4
#: How sessions commit, whether some standbys are synchronous, and whether there are standbys. Those that receive only
#: some tables do not count. The state of a standby is NULL for roles that may not see it.
STANDBYS = """
SELECT current_setting('synchronous_commit'), current_setting('synchronous_standby_names') <> '', EXISTS (
    SELECT 1 FROM pg_stat_replication AS standby WHERE standby.state = 'streaming' AND NOT EXISTS (
        SELECT 1 FROM pg_replication_slots AS slot WHERE slot.active_pid = standby.pid AND slot.slot_type = 'logical'))
"""


@register("jobchains")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    try:
        settings = get_settings()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="Correct settings.JOBCHAINS.", id="jobchains.E001")]
    try:
        backoff_of_settings()
    except ImproperlyConfigured as error:
        hint = "Set JOBCHAINS['BACKOFF'] to the dotted path of a function, or remove it."
        return [Error(str(error), hint=hint, id="jobchains.E010")]
    problems = (_database_problems(alias, settings) for alias in settings.aliases)
    return [*_codec_problems(), *chain.from_iterable(problems)]


def _codec_problems() -> Iterator[CheckMessage]:
    try:
        get_codec()
    except ImproperlyConfigured as error:
        yield Error(str(error), hint="Correct settings.JOBCHAINS['PAYLOAD_CODEC'].", id="jobchains.E011")


def _database_problems(alias: str, settings: Settings) -> Iterator[CheckMessage]:
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        key = "DATABASE" if alias == settings.DATABASE else "DATABASES"
        problem = f"JOBCHAINS[{key!r}] names {alias!r}, which is not in DATABASES."
        yield Error(problem, hint=f"Use one of these aliases: {known}.", id="jobchains.E002")
        return
    try:
        get_store(alias)
    except ImproperlyConfigured as error:
        name = settings.name_of(alias, "STORE")
        hint = f"Set {name} to a subclass of django_jobchains.store.Store for this database."
        is_set = settings.of(alias, "STORE") is not None
        yield Error(str(error), hint=hint if is_set else None, id="jobchains.E008")
        return
    try:
        get_notifier(alias)
    except ImproperlyConfigured as error:
        yield Error(str(error), hint=f"Correct settings.{settings.name_of(alias, 'NOTIFIER')}.", id="jobchains.E005")


@register("jobchains")
def check_registry(**kwargs: Any) -> list[CheckMessage]:
    registry = get_registry()
    try:
        registry.check()
    except RegistryError as error:
        return [Error(str(error), hint="Use each name for one job type in the whole project.", id="jobchains.E003")]
    types = registry.job_types()
    hint = "Name a type that chains can start with. Its own on_failure must not lead back to the type that failed."
    return [
        *_unknown_types(types),
        *(Error(f"{problem}.", hint=hint, id="jobchains.E009") for problem in registry.failure_problems()),
        *_missing_forms(types),
        *_missing_middleware(registry),
        *(
            Error(f"{problem}.", hint="Use the same limit, or other groups.", id="jobchains.E023")
            for problem in registry.limit_problems()
        ),
        *_invalid_schedules(registry),
    ]


def _missing_forms(types: dict[str, Any]) -> Iterator[CheckMessage]:
    for job_type in types.values():
        try:
            form = import_string(job_type.completion_form) if isinstance(job_type.completion_form, str) else BaseForm
        except ImportError as error:
            form = error
        if not (isinstance(form, type) and issubclass(form, BaseForm)):
            problem = f"The completion_form of {job_type.name!r} is not a form class: {form!r}."
            hint = "Correct the dotted path, or pass the class itself."
            yield Error(problem, hint=hint, id="jobchains.E012")


def _invalid_schedules(registry: Registry) -> Iterator[CheckMessage]:
    if check_settings():  # The limits of inputs are settings.
        return
    for problem in registry.schedules()[1]:
        yield Error(str(problem), hint="Correct the call of processors.schedule().", id="jobchains.E022")


def _missing_middleware(registry: Registry) -> Iterator[CheckMessage]:
    """Find slices without required middleware: a warning, because workers that would run them do not start."""
    if check_settings():
        return
    try:
        names = [*registry.job_types(), *(kind.name for kind in registry.record_types())]
        problems = registry.middleware_problems(required_middleware(), names)
    except ImproperlyConfigured as error:
        yield Error(str(error), hint="Correct settings.JOBCHAINS['REQUIRED_MIDDLEWARE'].", id="jobchains.E007")
        return
    if problems:
        hint = "Correct it with Processors(middleware=[…]). A worker that would run these slices does not start."
        yield checks.Warning(f"Required middleware: {problems}.", hint=hint, id="jobchains.W003")


def _unknown_types(types: dict[str, Any]) -> Iterator[CheckMessage]:
    for job_type in types.values():
        for name in sorted(job_type.continues_with or ()):
            if name not in types:
                yield _unknown(f"{job_type.name!r} continues_with {name!r}", "jobchains.E004")
        for name in sorted(job_type.blockers or ()):
            if name not in types:
                yield _unknown(f"{job_type.name!r} accepts blockers of {name!r}", "jobchains.E006")


def _unknown(claim: str, id: str) -> Error:
    hint = "Correct the name, or add the app whose jobs module declares it to INSTALLED_APPS."
    return Error(f"{claim}, which no app declares.", hint=hint, id=id)


Check = Callable[[Settings, Container[str]], Iterator[CheckMessage]]


def _register(*tags: str, deploy: bool = False) -> Callable[[Check], Callable[..., list[CheckMessage]]]:
    """Register a check that is called with the settings, unless they are invalid, which ``check_settings`` reports."""

    def decorate(check: Check) -> Callable[..., list[CheckMessage]]:
        @register(*tags, deploy=deploy)
        def run(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
            return [] if check_settings() else list(check(get_settings(), databases or ()))

        return run

    return decorate


@_register(Tags.database)
def check_database(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    for alias in settings.aliases:
        if alias in databases and _begins_as_reader(alias):
            yield checks.Warning(
                f"Transactions on the SQLite database {alias!r} begin as readers, so enqueueing after a read fails "
                "with 'database is locked' if another process wrote in between.",
                hint="Set its OPTIONS to {'transaction_mode': 'IMMEDIATE', 'timeout': 20}.",
                id="jobchains.W001",
            )


def _begins_as_reader(alias: str) -> bool:
    connection = connections[alias]
    return connection.vendor == "sqlite" and connection.settings_dict["OPTIONS"].get("transaction_mode") != "IMMEDIATE"


@_register(Tags.database)
def check_chain_view(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    """Find the view without ``security_invoker``: on PostgreSQL 14, or after an upgrade without ``migrate``."""
    for alias in settings.aliases:
        if alias in databases and bypasses_row_security(connections[alias]):
            upgrade = "" if supports_invoker(connections[alias]) else "Upgrade the server to PostgreSQL 15 or newer. "
            yield checks.Warning(
                f"Row-level security restricts the table django_jobchains_job in the database {alias!r}, but the view "
                "django_jobchains_chain shows all of its chains to every role that may read the view.",
                hint=f"{upgrade}Run manage.py migrate. Until then, grant the view only to roles that may see all jobs.",
                id="jobchains.W005",
            )


@_register(Tags.database, deploy=True)
def check_commits(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    for alias in settings.aliases:
        if alias in databases and (problem := commit_problem(alias)):
            yield checks.Warning(
                f"The database {alias!r} may lose chains that it has acknowledged: {problem}.",
                hint="See 'Replicate synchronously' on the page about failover, or silence this warning if losing the "
                "last transactions is acceptable.",
                id="jobchains.W013",
            )


def commit_problem(alias: str) -> str | None:
    """Return why a COMMIT may be lost after it has succeeded; None also if this role may not see the standbys."""
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(STANDBYS)
        commit, has_names, has_standbys = cursor.fetchone()
    if commit == "off":
        return "synchronous_commit is off, so a crash of the server loses the last transactions"
    if has_standbys and not has_names:
        return "it has standbys, but synchronous_standby_names is empty, so a failover loses the last transactions"
    if commit == "local" and has_names:
        return "synchronous_commit is local, so a failover loses the last transactions"
    return None


@_register("jobchains")
def check_isolation(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    """Find isolation and limits that this operating system does not enforce, except where a worker overrides them."""
    for name, isolation, _ in _handlers(get_registry()):
        if isolation.is_process and (problem := start_problem() or limit_problem(isolation)):
            yield checks.Warning(
                f"Isolation of {name!r}: {problem}.",
                hint="Remove it, or silence this warning if production runs on another system.",
                id="jobchains.W009",
            )


def _handlers(registry: Registry) -> Iterator[tuple[str, Isolation, bool]]:
    """Yield the name and the isolation of each handler of jobs or records, and whether it is async."""
    for processor in registry.processors():
        yield processor.job_type.name, resolve(*processor.policies).isolation, processor.is_async
    for kind in registry.record_types():
        yield kind.name, resolve(Policy(isolation=kind.own_isolation)).isolation, kind.is_async


@_register("jobchains")
def check_pools(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    """Find pools that are too small for a worker, such as ``"pool": True``, which allows four connections."""
    registry = get_registry()
    has_schedules = any(part.schedules for part in registry.slices)
    has_async = any(is_async and not isolation.is_process for _, isolation, is_async in _handlers(registry))
    needed = settings.SLOTS + WORKER_CONNECTIONS + has_schedules + 2 * settings.ASYNC_THREADS * has_async
    if registries.load_task is not None:
        needed += TASK_CONNECTIONS
    for alias in settings.aliases:
        size = _pool_size(alias)
        if size is not None and size < needed:
            numbers = "JOBCHAINS['SLOTS'] or JOBCHAINS['ASYNC_THREADS']" if has_async else "JOBCHAINS['SLOTS']"
            yield checks.Warning(
                f"The connection pool of the database {alias!r} has at most {size} connections, but a worker with "
                f"{settings.SLOTS} slots uses up to {needed}: attempts fail, and leases are not renewed in time.",
                hint=f"Set its OPTIONS['pool'] to {{'max_size': {needed}}} or more, or {numbers} to fewer.",
                id="jobchains.W006",
            )


def _pool_size(alias: str) -> int | None:
    """Return how many connections the pool of an alias may open, None without a pool."""
    options = connections.settings[alias].get("OPTIONS", {}).get("pool")
    if not options:
        return None
    own = options if isinstance(options, dict) else {}
    smallest: int = own.get("min_size", PSYCOPG_POOL_SIZE)
    return own.get("max_size") or smallest


@_register("jobchains", deploy=True)
def check_network(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    """Check the settings only. Worker processes add the missing options themselves, but web processes do not."""
    for alias in settings.aliases:
        if missing := missing_network_options(alias):
            yield checks.Warning(
                f"Connections to the PostgreSQL database {alias!r} do not detect a dead network: a request that "
                "enqueues or waits for a chain may hang for hours.",
                hint=f"Add to its OPTIONS: {missing}.",
                id="jobchains.W002",
            )


@_register("jobchains", deploy=True)
def check_notifier(settings: Settings, databases: Container[str]) -> Iterator[CheckMessage]:
    """Check the settings only. Hints carry no data and are validated, but forged ones can keep workers busy."""
    for alias in () if django_settings.DEBUG else settings.aliases:
        if problem := get_notifier(alias).security_problem():
            yield checks.Warning(
                f"Anyone on the network can forge wake-ups and keep workers busy: {problem}.",
                hint="Set a password or another credential for the server, or silence this warning on a separate "
                "network.",
                id="jobchains.W004",
            )
