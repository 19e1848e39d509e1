"""STORE and NOTIFIER are those of one database; ``DATABASES`` has those of the others."""

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections

from django_jobchains.checks import check_database, check_settings
from django_jobchains.conf import get_settings
from django_jobchains.notifications import NullNotifier, get_notifier
from django_jobchains.notifications.base import default_prefix
from django_jobchains.store import _store, get_store
from django_jobchains.worker import Worker
from tests.worker.fixtures import StartWorker

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

NULL = {"BACKEND": "django_jobchains.notifications.base.NullNotifier"}
WRONG = {"BACKEND": "django_jobchains.nowhere.Notifier"}


class OwnStore:
    """Of the vendor of the first database, which it does not ask."""

    def __new__(cls, using: str) -> Any:
        store = type(_store(using="default", path=None))
        return type("OwnStore", (store,), {})(using)


def test_what_is_said_of_one_database_does_not_hold_for_another(other: str, settings: Any) -> None:
    settings.JOBCHAINS = {"NOTIFIER": NULL, "STORE": f"{__name__}.OwnStore"}
    assert isinstance(get_notifier("default"), NullNotifier)
    assert type(get_store("default")).__name__ == "OwnStore"
    assert not isinstance(get_notifier(other), NullNotifier)
    assert get_store(other).connection.vendor in type(get_store(other)).__name__.lower()


def test_another_database_has_its_own(other: str, settings: Any) -> None:
    settings.JOBCHAINS = {"DATABASES": {other: {"NOTIFIER": NULL}}}
    assert isinstance(get_notifier(other), NullNotifier)
    assert not isinstance(get_notifier("default"), NullNotifier)
    assert get_settings().aliases == ("default", other)


@pytest.mark.postgresql
def test_the_alias_to_listen_with_is_that_of_one_database(other: str, settings: Any) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "default", "prefix": "of_project"}}}
    if connections[other].vendor == "postgresql":
        notifier: Any = get_notifier(other)
        assert (notifier.listen_using, notifier.channels["chain_finished"]) == (other, "django_jobchains_finished")
    default: Any = get_notifier("default")
    assert default.channels["chain_finished"] == "of_project_finished"


@pytest.mark.postgresql
@pytest.mark.parametrize("prefix", ["", "Upper", "a-b", "1a", 'a"; DROP', "x" * 41])
def test_a_prefix_that_is_no_name_of_a_channel_is_an_error(other: str, settings: Any, prefix: str) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"prefix": prefix}}}
    with pytest.raises(ImproperlyConfigured, match=r"prefix: .* must have 1 to 40 characters"):
        get_notifier("default")


def test_a_server_that_knows_no_databases_has_channels_of_each(other: str, settings: Any) -> None:
    assert (default_prefix("default"), default_prefix(other)) == ("django_jobchains", "django_jobchains.other")
    assert default_prefix("a b.c") == "django_jobchains.a_b_c"
    settings.JOBCHAINS = {"DATABASE": other}
    assert (default_prefix("default"), default_prefix(other)) == ("django_jobchains.default", "django_jobchains")


def test_workers_of_two_databases_do_not_share_jobs_out_among_themselves(
    other: str, make_worker: StartWorker, processors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when both databases have the same name, on two servers."""
    processors.register("work.some")(lambda job: None)
    monkeypatch.setitem(connections[other].settings_dict, "NAME", connections["default"].settings_dict["NAME"])
    monkeypatch.setitem(connections[other].settings_dict, "HOST", "elsewhere")
    workers: list[Worker] = [make_worker(using=using) for using in ("default", other)]
    assert len({worker.parts.turns._group for worker in workers}) == 2


def test_every_database_of_the_settings_is_checked(other: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.JOBCHAINS = {"DATABASES": {other: {"NOTIFIER": WRONG}}}
    (error,) = check_settings()
    assert error.id == "jobchains.E005"
    assert "JOBCHAINS['DATABASES']['other']['NOTIFIER']: django_jobchains.nowhere" in error.msg
    settings.JOBCHAINS = {"DATABASES": {other: {"STORE": "django_jobchains.nowhere.Store"}}}
    (error,) = check_settings()
    assert (error.id, "JOBCHAINS['DATABASES']['other']['STORE']" in error.msg) == ("jobchains.E008", True)
    settings.JOBCHAINS = {"DATABASES": {"nowhere": {}}}
    (error,) = check_settings()
    assert (error.id, error.msg) == (
        "jobchains.E002",
        "JOBCHAINS['DATABASES'] names 'nowhere', which is not in DATABASES.",
    )
    settings.JOBCHAINS = {"DATABASES": {other: {}}}
    if connections[other].vendor == "sqlite":
        monkeypatch.setitem(connections[other].settings_dict, "OPTIONS", {})
        (warning,) = check_database(databases=["default", other])
        assert (warning.id, "'other'" in warning.msg) == ("jobchains.W001", True)


@pytest.mark.parametrize(
    ("databases", "message"),
    [
        ([], r"JOBCHAINS\['DATABASES'\] must be a dict of dicts"),
        ({"other": "redis"}, r"JOBCHAINS\['DATABASES'\] must be a dict of dicts"),
        ({"default": {}}, r"has an entry for 'default', which is JOBCHAINS\['DATABASE'\]"),
        (
            {"other": {"SLOTS": 3}},
            r"Unknown keys in JOBCHAINS\['DATABASES'\]\['other'\]: SLOTS\. Known: NOTIFIER, STORE",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error(other: str, settings: Any, databases: Any, message: str) -> None:
    settings.JOBCHAINS = {"DATABASES": databases}
    with pytest.raises(ImproperlyConfigured, match=message):
        get_settings()


def test_migrate_makes_the_view_of_chains_on_each_database(other: str) -> None:
    call_command("migrate", database=other, verbosity=0)
    with connections[other].cursor() as cursor:
        tables = {table.name: table.type for table in connections[other].introspection.get_table_list(cursor)}
    assert tables["django_jobchains_chain"] == "v"
