from datetime import UTC, datetime, timedelta

import pytest

from django_jobchains.models import Schedule
from django_jobchains.processors import Registry
from django_jobchains.schedules.firing import DeclaredSchedules, fire
from tests.support.fixtures import only_slice

processors = only_slice()


@pytest.fixture
def report(processors):
    @processors.register("schedules.report")
    def report(job):
        return job.scheduled_for and job.scheduled_for.isoformat()

    return report


class Time:
    """The clock of the store, which stands still at a time that the test sets."""

    def __init__(self, store, monkeypatch):
        self._store = store
        self._monkeypatch = monkeypatch

    def set(self, text):
        moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
        sql = f"CAST('{moment.isoformat()}' AS timestamptz)"
        if self._store.db.has_one_writer:
            sql = f"'{self._store.db.time_text(moment)}'"
        self._monkeypatch.setattr(self._store.db, "now_sql", sql)
        self._monkeypatch.setattr(self._store.db, "clock_sql", sql)
        self._store.db.ahead_seconds = 0
        return moment

    def advance(self, **duration):
        self._store.db.ahead_seconds += timedelta(**duration).total_seconds()


@pytest.fixture
def time(store, monkeypatch):
    time = Time(store, monkeypatch)
    yield time
    monkeypatch.undo()
    store.db.ahead_seconds = 0


@pytest.fixture
def version(store):
    """Return a function that makes a version of the code, which stores its schedules and can fire them."""

    def make(*parts, starts=True):
        registry = Registry()
        for part in parts:
            registry.add(part)
        return Version(store, registry, starts=starts)

    return make


class Version:
    def __init__(self, store, registry, *, starts):
        self._store = store
        self._registry = registry
        self.declared = DeclaredSchedules(registry, store)
        if starts:
            self.declared.store()

    def fire(self, excluded=()):
        return fire(self._store, self._registry, self.declared.names, excluded)


def next_ticks():
    """Return the stored next ticks by name, as texts in UTC."""
    rows = Schedule.objects.order_by("name")
    return {row.name: row.next_tick_at and row.next_tick_at.astimezone(UTC).strftime("%m-%d %H:%M:%S") for row in rows}


def ticks_of(chains):
    return [chain.scheduled_for.astimezone(UTC).strftime("%H:%M:%S") for chain in chains]
