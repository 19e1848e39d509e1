"""``JOBCHAINS["STORE"]``: a project brings the class that keeps its jobs."""

from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils.module_loading import import_string

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.store import CreatedJob, Store, get_store

pytestmark = pytest.mark.django_db

_SHIPPED = {
    "postgresql": "django_jobchains.store.postgresql.PostgreSQLStore",
    "sqlite": "django_jobchains.store.sqlite.SQLiteStore",
}
Shipped: Any = import_string(_SHIPPED[connection.vendor])


class OwnStore(Shipped):  # type: ignore[misc]
    """Counts what it creates."""

    created = 0

    def create(self, *args: Any, **kwargs: Any) -> list[CreatedJob]:
        rows: list[CreatedJob] = super().create(*args, **kwargs)
        type(self).created += len(rows)
        return rows


class Unfinished(Store):
    """Lacks what is abstract."""


def test_without_it_the_vendor_says_which() -> None:
    assert type(get_store()) is Shipped


def test_the_class_that_is_named_is_used_by_all(settings: Any) -> None:
    settings.JOBCHAINS = {"STORE": f"{__name__}.OwnStore"}
    OwnStore.created = 0
    assert type(get_store()) is OwnStore
    assert get_store() is get_store("default")
    JobType[Any, Any]("shop.ship").enqueue()
    chain = chains.enqueue_many([JobType[Any, Any]("shop.ship").item()])
    assert (OwnStore.created, Job.objects.count(), len(chain)) == (2, 2, 1)


def test_the_next_setting_is_followed(settings: Any) -> None:
    settings.JOBCHAINS = {"STORE": f"{__name__}.OwnStore"}
    own = get_store()
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
        (f"{__name__}.Shipped.create", "No module named"),
        ("django_jobchains.notifications.Notifier", "not a subclass of django_jobchains.store.Store"),
        (f"{__name__}.connection", "not callable"),
        (f"{__name__}.Unfinished", "abstract"),
        (5, "cannot be used"),
    ],
)
def test_e008_a_store_that_cannot_be_used(settings: Any, path: Any, words: str) -> None:
    settings.JOBCHAINS = {"STORE": path}
    with pytest.raises(ImproperlyConfigured, match=words):
        get_store()
    (message,) = (found for found in run_checks(tags=["jobchains"]) if str(found.id).startswith("jobchains."))
    assert message.id == "jobchains.E008"
    assert words in message.msg
    assert "JOBCHAINS['STORE']" in str(message.hint)
