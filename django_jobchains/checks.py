"""System checks: the problem in ``msg``, the remedy in ``hint``."""

from collections.abc import Iterator
from typing import Any

from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.chain_view import bypasses_row_security, supports_invoker
from django_jobchains.conf import Settings, get_settings
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware.required import required_kinds
from django_jobchains.network import missing_options
from django_jobchains.notifications import get_notifier
from django_jobchains.processors import Registry, get_registry
from django_jobchains.store import get_store


@register("jobchains")
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    try:
        settings = get_settings()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="Correct settings.JOBCHAINS.", id="jobchains.E001")]
    return [error for alias in settings.aliases for error in _unusable_database(alias, settings)]


def _unusable_database(alias: str, settings: Settings) -> Iterator[CheckMessage]:
    if alias not in connections.settings:
        known = ", ".join(connections.settings)
        said = f"is {alias!r}" if alias == settings.DATABASE else f"names {alias!r}"
        key = "DATABASE" if alias == settings.DATABASE else "DATABASES"
        problem = f"JOBCHAINS[{key!r}] {said}, which is not in DATABASES."
        yield Error(problem, hint=f"Known: {known}.", id="jobchains.E002")
        return
    try:
        get_notifier(alias)
    except ImproperlyConfigured as error:
        yield Error(str(error), hint=f"Correct settings.{settings.name_of(alias, 'NOTIFIER')}.", id="jobchains.E005")
        return
    try:
        get_store(alias)
    except ImproperlyConfigured as error:
        name = settings.name_of(alias, "STORE")
        hint = f"{name} names a subclass of django_jobchains.store.Store that is made for this database."
        yield Error(str(error), hint=hint, id="jobchains.E008")


@register("jobchains")
def check_registry(**kwargs: Any) -> list[CheckMessage]:
    registry = get_registry()
    try:
        registry.check()
    except RegistryError as error:
        return [Error(str(error), hint="A name belongs to one job type in the whole project.", id="jobchains.E003")]
    return [*_unknown_names(registry.job_types()), *_without_middleware(registry)]


def _without_middleware(registry: Registry) -> Iterator[CheckMessage]:
    """A warning, as nobody may run those slices: a worker that would does not start."""
    if check_settings():
        return
    try:
        lacks = registry.lacking(required_kinds(), registry.job_types())
    except ImproperlyConfigured as error:
        yield Error(str(error), hint="Correct settings.JOBCHAINS['REQUIRED_MIDDLEWARE'].", id="jobchains.E007")
        return
    if lacks:
        hint = "Add it: Processors(middleware=[…]). A worker that would run these slices does not start."
        yield checks.Warning(f"Required middleware is missing: {lacks}.", hint=hint, id="jobchains.W003")


def _unknown_names(types: dict[str, Any]) -> Iterator[CheckMessage]:
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


@register(Tags.database)
def check_database(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    if check_settings():
        return []
    return [
        checks.Warning(
            f"Transactions on the SQLite database {alias!r} begin as readers: enqueueing after a read fails with "
            "'database is locked' when another process wrote in between.",
            hint="Set OPTIONS = {'transaction_mode': 'IMMEDIATE', 'timeout': 20} for it.",
            id="jobchains.W001",
        )
        for alias in get_settings().aliases
        if alias in (databases or ()) and _begins_as_reader(alias)
    ]


def _begins_as_reader(alias: str) -> bool:
    connection = connections[alias]
    return connection.vendor == "sqlite" and connection.settings_dict["OPTIONS"].get("transaction_mode") != "IMMEDIATE"


@register(Tags.database)
def check_chain_view(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """On PostgreSQL 14, or after an upgrade of the server without ``migrate``."""
    if check_settings():
        return []
    return [
        _bypassed_row_security(alias)
        for alias in get_settings().aliases
        if alias in (databases or ()) and bypasses_row_security(connections[alias])
    ]


def _bypassed_row_security(alias: str) -> CheckMessage:
    upgrade = "" if supports_invoker(connections[alias]) else "Upgrade the server to PostgreSQL 15 or newer. "
    return checks.Warning(
        f"Row-level security restricts the table django_jobchains_job in the database {alias!r}, but the view "
        "django_jobchains_chain shows all of its chains to every role that may read the view.",
        hint=f"{upgrade}Run manage.py migrate. Until then, grant the view only to roles that may see all jobs.",
        id="jobchains.W005",
    )


@register("jobchains", deploy=True)
def check_network(**kwargs: Any) -> list[CheckMessage]:
    """Of the settings alone. A worker process completes them for itself; a web process enqueues and waits."""
    if check_settings():
        return []
    return [
        checks.Warning(
            f"Connections to the PostgreSQL database {alias!r} do not notice a network that is gone: a request that "
            "enqueues or waits for a chain may hang for hours.",
            hint=f"Add to its OPTIONS: {missing}.",
            id="jobchains.W002",
        )
        for alias in get_settings().aliases
        if (missing := missing_options(alias))
    ]


@register("jobchains", deploy=True)
def check_notifier(**kwargs: Any) -> list[CheckMessage]:
    """Of the settings alone. Hints carry no data and are verified, but whoever may forge them can keep workers busy."""
    if django_settings.DEBUG or check_settings():
        return []
    return [
        checks.Warning(
            f"Anybody on the network can forge wake-ups and keep workers busy: {problem}.",
            hint="Give the server a password or another credential, or silence this on a network of its own.",
            id="jobchains.W004",
        )
        for alias in get_settings().aliases
        if (problem := get_notifier(alias).unprotected())
    ]
