"""``JOBCHAINS["STORE"]`` selects the class of the store."""

import sys

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from django.utils.module_loading import import_string

from django_jobchains import chains, notifications, store
from django_jobchains.declare.checks import check_settings
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.store import Store, get_store

pytestmark = pytest.mark.django_db

_SHIPPED = {
    "postgresql": "django_jobchains.store.postgresql.PostgreSQLStore",
    "sqlite": "django_jobchains.store.sqlite.SQLiteStore",
}
Shipped = import_string(_SHIPPED[connection.vendor])


class OwnJobs(Shipped.jobs_class):
    """Counts the jobs that it creates."""

    created = 0

    def create(self, *args, **kwargs):
        rows = super().create(*args, **kwargs)
        type(self).created += len(rows)
        return rows


class OwnStore(Shipped):
    jobs_class = OwnJobs


class Unfinished(Store):
    """A store without a database class."""


def test_the_configured_class_is_used_everywhere_until_the_setting_changes(settings):
    assert type(get_store()) is Shipped
    settings.JOBCHAINS = {"STORE": f"{__name__}.OwnStore"}
    OwnJobs.created = 0
    own = get_store()
    assert type(own) is OwnStore
    assert own is get_store("default")
    JobType("shop.ship").enqueue()
    chain = chains.enqueue_many([JobType("shop.ship").item()])
    assert (OwnJobs.created, Job.objects.count(), len(chain)) == (2, 2, 1)
    settings.JOBCHAINS = {}
    assert type(get_store()) is Shipped
    settings.JOBCHAINS = {"STORE": f"{__name__}.OwnStore"}
    assert get_store() is own


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no.such.Store", "No module named"),
        ("nonsense", "doesn't look like a module path"),
        (f"{__name__}.Nothing", "Nothing"),
        (f"{__name__}.Shipped.connection", "No module named"),
        ("django_jobchains.notifications.Notifier", "not a subclass of django_jobchains.store.Store"),
        (f"{__name__}.connection", "not callable"),
        (f"{__name__}.Unfinished", "database_class"),
        (5, "cannot be used"),
    ],
)
def test_e008_an_unusable_store(settings, path, words):
    settings.JOBCHAINS = {"STORE": path}
    with pytest.raises(ImproperlyConfigured, match=words):
        get_store()
    (message,) = (found for found in run_checks(tags=["jobchains"]) if str(found.id).startswith("jobchains."))
    assert message.id == "jobchains.E008"
    assert words in message.msg
    assert "JOBCHAINS['STORE']" in str(message.hint)


def test_e008_postgresql_without_psycopg_3(monkeypatch):
    """For example, if only psycopg2 is installed. That the notifier cannot be used either is not a second error."""
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    monkeypatch.setattr(store, "_stores", {})
    monkeypatch.setattr(store, "_store", store._store.__wrapped__)
    monkeypatch.setattr(notifications, "_notifiers", {})
    for name in list(sys.modules):
        if name.startswith(("django_jobchains.store.postgresql", "django_jobchains.notifications.postgres")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    (message,) = check_settings()
    text = "PostgreSQL needs psycopg 3: install django_jobchains[postgres]."
    assert (message.id, message.msg, message.hint) == ("jobchains.E008", text, None)
