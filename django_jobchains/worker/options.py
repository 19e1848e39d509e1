"""Checks of the arguments of ``Worker``. Each raises ``ImproperlyConfigured``, which names the argument."""

from collections.abc import Collection, Iterable
from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.database_setup import thread_problem
from django_jobchains.job_types import checked_queue
from django_jobchains.policies import Backoff, Lease, Policy, lease_of
from django_jobchains.processors import Registry, get_registry
from django_jobchains.schedules import MOST_SECONDS, seconds_of
from django_jobchains.store import Store, get_store

NAME_LENGTH = 100


def checked_count(argument: str, given: object) -> int:
    """Return a whole number from 1."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise refused(argument, given, "is not a whole number from 1")
    return given


def checked_seconds(argument: str, given: timedelta | float, *, least: float | None = None) -> float:
    """Return the seconds of a timedelta or a number: more than 0, or from ``least``; less than a thousand years."""
    try:
        seconds = seconds_of(given, argument)
    except TypeError as error:
        raise ImproperlyConfigured(f"Worker(): {error}") from error
    is_long_enough = seconds > 0 if least is None else seconds >= least
    if not (is_long_enough and seconds <= MOST_SECONDS):
        bound = "more than 0" if least is None else f"{least:g} or more"
        raise refused(argument, given, f"is not a usable length of time: pass {bound} seconds, or a timedelta")
    return seconds


def checked_flag(argument: str, given: object) -> bool:
    """Return True or False; nothing else is taken for one of them."""
    if not isinstance(given, bool):
        raise refused(argument, given, "is not True or False")
    return given


def checked_name(given: object) -> str | None:
    """Return the name of a worker, or None."""
    if given is None:
        return None
    if not (isinstance(given, str) and 0 < len(given) <= NAME_LENGTH and given.isprintable()):
        raise refused("name", given, f"is not a name: pass 1 to {NAME_LENGTH} printable characters")
    return given


def checked_queues(given: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the names of queues; None stands for every queue."""
    names = _checked_names("queues", given, "every queue")
    try:
        return None if names is None else tuple(map(checked_queue, names))
    except ValueError as error:
        raise refused("queues", given, f"has a name that no queue can have: {error}") from error


def checked_types(given: Collection[str] | None) -> tuple[str, ...] | None:
    """Return names or patterns of job types; None stands for every type with a processor."""
    return _checked_names("types", given, "every type")


def _checked_names(argument: str, given: object, all_of_them: str) -> tuple[str, ...] | None:
    """A string is one name: its characters are never meant."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise refused(argument, given, f"is not a list of names. Leave it out for {all_of_them}")
    return names


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
    if problem := thread_problem(store.using):
        raise ImproperlyConfigured(f"A worker cannot use this database. {problem}")
    return store


def checked_policy(
    backoff: Backoff | None,
    lease: Lease | timedelta | float | None,
    max_attempts: int | None,
    timeout: timedelta | float | None,
) -> Policy:
    """Return what the worker decides about attempts of types that decide nothing themselves."""
    try:
        return Policy(backoff, lease_of(lease), max_attempts, timeout)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"Worker(): {error}") from error


def refused(argument: str, given: object, problem: str) -> ImproperlyConfigured:
    """Return the error about an argument of ``Worker``."""
    return ImproperlyConfigured(f"Worker(): {argument}={given!r:.100} {problem}.")
