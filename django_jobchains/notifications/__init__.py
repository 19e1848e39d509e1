"""Wake-ups: hints that there may be work. They never carry truth; a lost one costs time, never work."""

import os
import threading
from collections.abc import Collection
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections, transaction
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.notifications.base import Notifier, NullNotifier
from django_jobchains.notifications.hints import (
    EVERY,
    KINDS,
    Hint,
    HintKind,
    chain_finished,
    decode,
    encode,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.notifications.listening import ListeningThread
from django_jobchains.notifications.subscribing import Listener, Subscribers

__all__ = (
    "EVERY",
    "KINDS",
    "Hint",
    "HintKind",
    "Listener",
    "ListeningThread",
    "Notifier",
    "NullNotifier",
    "Subscribers",
    "chain_finished",
    "decode",
    "encode",
    "get_notifier",
    "job_scheduled",
    "ownership_lost",
    "publish_after_commit",
)

_BY_VENDOR = {
    "postgresql": "django_jobchains.notifications.postgres.PostgresNotifier",
    "sqlite": "django_jobchains.notifications.sqlite.SqliteNotifier",
}


def publish_after_commit(using: str, hints: Collection[Hint]) -> None:
    """Sends hints after the outermost commit; a rollback, also of a savepoint, drops its own.

    In manual transaction management nobody knows when that is: the workers' next poll finds the jobs.
    """
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(partial(get_notifier(using).publish, hints), using=using, robust=True)


_notifiers: dict[str, Notifier] = {}
_lock = threading.Lock()


def get_notifier(using: str) -> Notifier:
    """Return the notifier of a database alias: the one that ``JOBCHAINS`` names for it, or that of its vendor."""
    notifier = _notifiers.get(using)
    if notifier is None:
        with _lock:
            notifier = _notifiers.get(using) or _notifiers.setdefault(using, _made(using))
    return notifier


def _made(using: str) -> Notifier:
    settings = get_settings()
    given: dict[str, Any] = dict(settings.of(using, "NOTIFIER"))
    name = settings.name_of(using, "NOTIFIER")
    path = given.pop("BACKEND", None) or _BY_VENDOR.get(connections[using].vendor)
    options = given.pop("OPTIONS", {})
    if given:
        unknown = ", ".join(given)
        raise ImproperlyConfigured(f"Unknown keys in {name}: {unknown}. Known: BACKEND, OPTIONS.")
    if path is None:
        return NullNotifier(using)
    try:
        notifier: Notifier = import_string(path)(using, **options)
    except (ImportError, TypeError) as error:
        raise ImproperlyConfigured(f"{name}: {path} cannot be used: {error}") from error
    return notifier


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in ("JOBCHAINS", "DATABASES", "CACHES"):
        before = list(_notifiers.values())
        _notifiers.clear()
        for notifier in before:
            notifier.close()


def _forget_after_fork() -> None:
    """What the parent has open is the parent's."""
    global _lock
    _lock = threading.Lock()
    _notifiers.clear()


setting_changed.connect(_forget)
os.register_at_fork(after_in_child=_forget_after_fork)
