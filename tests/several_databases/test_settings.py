"""``STORE`` and ``NOTIFIER`` apply to one database; ``DATABASES`` has the settings of the others."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections

from django_jobchains.conf import get_settings
from django_jobchains.declare.checks import check_database, check_settings
from django_jobchains.notifications import NullNotifier, get_notifier
from django_jobchains.notifications.base import default_prefix
from django_jobchains.store import _store, get_store

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

NULL = {"BACKEND": "django_jobchains.notifications.base.NullNotifier"}
WRONG = {"BACKEND": "django_jobchains.nowhere.Notifier"}


class CustomStore:
    """A subclass of the store that is the default for the first database."""

    def __new__(cls, using):
        store = type(_store(using="default", path=None))
        return type("CustomStore", (store,), {})(using)


def test_store_and_notifier_apply_to_one_database(other, settings):
    settings.JOBCHAINS = {"NOTIFIER": NULL, "STORE": f"{__name__}.CustomStore"}
    assert isinstance(get_notifier("default"), NullNotifier)
    assert type(get_store("default")).__name__ == "CustomStore"
    assert not isinstance(get_notifier(other), NullNotifier)
    assert get_store(other).connection.vendor in type(get_store(other)).__name__.lower()
    settings.JOBCHAINS = {"DATABASES": {other: {"NOTIFIER": NULL}}}
    assert isinstance(get_notifier(other), NullNotifier)
    assert not isinstance(get_notifier("default"), NullNotifier)
    assert get_settings().aliases == ("default", other)


@pytest.mark.postgresql
def test_notifier_options_apply_to_one_database(other, settings):
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "default", "prefix": "of_project"}}}
    if connections[other].vendor == "postgresql":
        notifier = get_notifier(other)
        assert (notifier.listen_using, notifier.channels["chain_finished"]) == (other, "django_jobchains_finished")
    default = get_notifier("default")
    assert default.channels["chain_finished"] == "of_project_finished"


@pytest.mark.postgresql
@pytest.mark.parametrize("prefix", ["", "Upper", "a-b", "1a", 'a"; DROP', "x" * 41])
def test_invalid_channel_prefix_is_refused(other, settings, prefix):
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"prefix": prefix}}}
    with pytest.raises(ImproperlyConfigured, match=r"prefix: .* must have 1 to 40 characters"):
        get_notifier("default")


def test_default_channel_prefix_contains_the_alias(other, settings):
    assert (default_prefix("default"), default_prefix(other)) == ("django_jobchains", "django_jobchains.other")
    assert default_prefix("a b.c") == "django_jobchains.a_b_c"
    settings.JOBCHAINS = {"DATABASE": other}
    assert (default_prefix("default"), default_prefix(other)) == ("django_jobchains.default", "django_jobchains")


def test_workers_of_two_databases_do_not_share_wake_budgets(other, make_worker, processors, monkeypatch):
    """This includes databases of the same name on two servers."""
    processors.register("work.some")(lambda job: None)
    with monkeypatch.context() as patch:  # undone before the workers stop, because stopping connects to the database
        patch.setitem(connections[other].settings_dict, "NAME", connections["default"].settings_dict["NAME"])
        patch.setitem(connections[other].settings_dict, "HOST", "elsewhere")
        workers = [make_worker(using=using) for using in ("default", other)]
    assert len({worker.components.wake_order.group for worker in workers}) == 2


@pytest.mark.parametrize(
    ("databases", "id_", "text"),
    [
        (
            {"other": {"NOTIFIER": WRONG}},
            "jobchains.E005",
            "JOBCHAINS['DATABASES']['other']['NOTIFIER']: django_jobchains.nowhere",
        ),
        ({"other": {"STORE": "no.such.Store"}}, "jobchains.E008", "JOBCHAINS['DATABASES']['other']['STORE']"),
        ({"nowhere": {}}, "jobchains.E002", "JOBCHAINS['DATABASES'] names 'nowhere', which is not in DATABASES."),
        ([], "jobchains.E001", "JOBCHAINS['DATABASES'] must be a dict of dicts"),
        ({"other": "redis"}, "jobchains.E001", "JOBCHAINS['DATABASES'] must be a dict of dicts"),
        ({"default": {}}, "jobchains.E001", "has an entry for 'default', which is JOBCHAINS['DATABASE']"),
        (
            {"other": {"SLOTS": 3}},
            "jobchains.E001",
            "Unknown keys in JOBCHAINS['DATABASES']['other']: SLOTS. Known: NOTIFIER, STORE",
        ),
    ],
)
def test_system_checks_cover_the_settings_of_every_database(other, settings, databases, id_, text):
    settings.JOBCHAINS = {"DATABASES": databases}
    (error,) = check_settings()
    assert (error.id, text in error.msg) == (id_, True)


def test_system_checks_cover_every_database(other, settings, monkeypatch):
    settings.JOBCHAINS = {"DATABASES": {other: {}}}
    if connections[other].vendor == "sqlite":
        monkeypatch.setitem(connections[other].settings_dict, "OPTIONS", {})
        (warning,) = check_database(databases=["default", other])
        assert (warning.id, "'other'" in warning.msg) == ("jobchains.W001", True)


def test_migrate_creates_the_chain_view_on_each_database(other):
    call_command("migrate", database=other, verbosity=0)
    with connections[other].cursor() as cursor:
        tables = {table.name: table.type for table in connections[other].introspection.get_table_list(cursor)}
    assert tables["django_jobchains_chain"] == "v"
