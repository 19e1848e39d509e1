"""The public methods of the store, named with their group, such as ``jobs.claim``."""

import inspect
from operator import attrgetter

from django_jobchains.store import get_store
from django_jobchains.store.database import Part

#: Methods for callers that have opened a transaction, and locked the rows, and parts of claims.
INTERNAL = {
    "blockers.fail_waiting", "blockers.has_open_link", "blockers.link", "blockers.lock", "blockers.resolve",
    "chains.cancel_jobs", "chains.erase", "jobs.claimed", "jobs.create_and_commit", "jobs.started", "keys.find",
    "keys.lock", "keys.mark", "limits.claim_of", "limits.lock_groups", "rates.charge", "rates.full_at", "rates.read",
    "rates.refund_jobs", "rates.starts_at", "rates.try_lock", "last_jobs.lock_current", "last_jobs.lock_jobs",
    "last_jobs.lock_rows", "last_jobs.lock_unlocked", "schedules.due", "schedules.fired", "schedules.lock",
    "schedules.pause", "schedules.resume", "schedules.run",
}  # fmt: skip


def public_methods():
    groups = {name: group for name, group in vars(get_store()).items() if isinstance(group, Part)}
    names = {
        f"{group_name}.{name}"
        for group_name, group in groups.items()
        for name, _ in inspect.getmembers(group, inspect.ismethod)
        if not name.startswith("_")
    }
    return names - INTERNAL


def method(store, name):
    return attrgetter(name)(store)


def replace_method(monkeypatch, store, name, replacement):
    group, _, name = name.partition(".")
    monkeypatch.setattr(getattr(store, group), name, replacement)
