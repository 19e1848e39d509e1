"""Wake-ups are hints that there may be work. The database decides what runs, so a lost hint only delays a job."""

import threading
from collections.abc import Collection
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.db import call_in_forks
from django_jobchains.db.connections import call_after_commit
from django_jobchains.notifications.base import Listener, ListeningThread, Notifier, NullNotifier, Subscribers
from django_jobchains.notifications.hints import (
    EVERY,
    KINDS,
    Hint,
    HintKind,
    chain_finished,
    decode,
    encode,
    freed_queue,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.text.humanize import sentence

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
    "freed_queue",
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
    """Send hints after the outermost commit. A rollback, also to a savepoint, discards the hints of its block.

    With manual transaction management, the commit cannot be detected, so workers find the jobs at their next poll.
    """
    call_after_commit(using, partial(get_notifier(using).publish, hints))


def notify_workers(using: str) -> None:
    """Let all workers query after the commit of the current transaction: for jobs, and for what has changed."""
    publish_after_commit(using, [job_scheduled(EVERY)])


_notifiers: dict[str, Notifier] = {}
_lock = threading.Lock()


def get_notifier(using: str) -> Notifier:
    """Return the notifier of a database alias: the configured one, or else the default for its vendor."""
    notifier = _notifiers.get(using)
    if notifier is None:
        with _lock:
            notifier = _notifiers.get(using) or _notifiers.setdefault(using, _create(using))
    return notifier


def _create(using: str) -> Notifier:
    settings = get_settings()
    setting: dict[str, Any] = dict(settings.of(using, "NOTIFIER"))
    name = settings.name_of(using, "NOTIFIER")
    path = setting.pop("BACKEND", None) or _BY_VENDOR.get(connections[using].vendor)
    options = setting.pop("OPTIONS", {})
    if unknown := ", ".join(setting):
        raise ImproperlyConfigured(f"Unknown keys in {name}: {unknown}. Known: BACKEND, OPTIONS.")
    if path is None:
        return NullNotifier(using)
    try:
        notifier: Notifier = import_string(path)(using, **options)
    except (ImportError, TypeError) as error:
        raise ImproperlyConfigured(sentence(f"{name}: {path} cannot be used: {error}")) from error
    return notifier


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in ("JOBCHAINS", "DATABASES", "CACHES"):
        notifiers = list(_notifiers.values())
        _notifiers.clear()
        for notifier in notifiers:
            notifier.close()


def _reset_after_fork() -> None:
    """Forget the notifiers without closing them: their connections belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _notifiers.clear()


setting_changed.connect(_on_setting_changed)
call_in_forks(_reset_after_fork)
