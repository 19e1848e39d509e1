"""``manage.py check``: the problem is in the message, the remedy in the hint."""

from types import SimpleNamespace

import pytest
from django.core import checks
from django.core.checks import Error, run_checks
from django.db import connections

from django_jobchains.children import limits
from django_jobchains.declare import registry as registries
from django_jobchains.declare.checks import check_database, check_isolation
from django_jobchains.isolation import Isolation
from django_jobchains.processors import JobType, Processors

#: Django's own checks of JSON fields query SQLite.
pytestmark = pytest.mark.django_db


def found(**options):
    return [message for message in run_checks(**options) if str(message.id).startswith("jobchains.")]


def charge_slice(**options):
    part = Processors(**options)
    part.register("shop.charge")(lambda job: None)
    return part


def test_a_valid_project_has_no_messages():
    assert found(databases=["default"]) == []


CORRECT = "Correct settings.JOBCHAINS."
REQUIRED = {"REQUIRED_MIDDLEWARE": ["django_jobchains.middleware.ActorContext"]}
ACTOR = "django_jobchains.middleware.actor_context.ActorContext"


@pytest.mark.parametrize(
    ("id_", "values", "text", "hint"),
    [
        ("E001", {"SLOT": 1}, "SLOT", CORRECT),
        ("E001", {"SLOTS": 0}, "SLOTS", CORRECT),
        ("E001", {"SLOTS": "three"}, "wrong type", CORRECT),
        ("E001", {"BACKOFF_JITTER": 2}, "BACKOFF_JITTER", CORRECT),
        ("E002", {"DATABASE": "jobs"}, "JOBCHAINS['DATABASE'] names 'jobs', which is not in DATABASES.", "default"),
        ("E007", {"REQUIRED_MIDDLEWARE": ["no.such.Middleware"]}, "'no.such.Middleware' cannot be imported", ""),
        ("W003", REQUIRED, f"the slice with shop.charge lacks {ACTOR}", ""),
    ],
)
def test_settings_that_are_wrong(registry, settings, id_, values, text, hint):
    registry.add(charge_slice())
    settings.JOBCHAINS = values
    for databases in (None, ["default"]):
        (message,) = found(databases=databases)
        assert message.id == f"jobchains.{id_}"
        assert isinstance(message, Error if id_[0] == "E" else checks.Warning)
        assert text in message.msg or text == "wrong type"
        assert hint in (message.hint or "")


def test_e003_two_types_with_one_name(registry):
    parts = Processors(), Processors()
    for part in parts:
        registry.add(part)
    for part in parts:
        part.register("shop.charge")(lambda job: None)
    (message,) = found()
    assert (type(message), message.id) == (Error, "jobchains.E003")
    assert "'shop.charge' is declared twice" in message.msg


def test_e004_an_undeclared_continuation(registry):
    registry.add(JobType("shop.charge", continues_with=["shop.recipt"]))
    (message,) = found()
    assert (type(message), message.id) == (Error, "jobchains.E004")
    assert message.msg == "'shop.charge' continues_with 'shop.recipt', which no app declares."
    assert "INSTALLED_APPS" in message.hint


@pytest.mark.parametrize(
    ("vendor", "options", "ids"),
    [
        ("sqlite", {}, ["jobchains.W001"]),
        ("sqlite", {"transaction_mode": "DEFERRED"}, ["jobchains.W001"]),
        ("sqlite", {"transaction_mode": "IMMEDIATE"}, []),
        ("postgresql", {}, []),
    ],
)
def test_w001_sqlite_transactions_that_begin_with_a_read_lock(monkeypatch, vendor, options, ids):
    connection = connections["default"]
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    assert found() == []  # databases are checked only on request
    monkeypatch.setattr(connection, "vendor", vendor)
    messages = check_database(databases=["default"])
    assert [message.id for message in messages] == ids
    for message in messages:
        assert isinstance(message, checks.Warning)
        assert "'default'" in message.msg
        assert message.hint == "Set its OPTIONS to {'transaction_mode': 'IMMEDIATE', 'timeout': 20}."


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        (None, None),
        (False, None),
        (True, 4),
        ({}, None),
        ({"min_size": 2}, 2),
        ({"max_size": 8}, 8),
        ({"max_size": 9}, None),
        ({"min_size": 9}, None),
    ],
)
def test_w006_a_pool_too_small_for_a_worker(monkeypatch, settings, pool, size):
    monkeypatch.setattr(registries, "load_task", None)
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"pool": pool})
    settings.JOBCHAINS = {"SLOTS": 3}
    messages = [message for message in found() if message.id == "jobchains.W006"]
    assert len(messages) == (size is not None)
    for message in messages:
        assert isinstance(message, checks.Warning)
        assert f"'default' has at most {size} connections, but a worker with 3 slots uses up to 9" in message.msg
        assert message.hint == "Set its OPTIONS['pool'] to {'max_size': 9} or more, or JOBCHAINS['SLOTS'] to fewer."


@pytest.mark.parametrize(("isolation", "needed"), [("thread", 29), ("process", None)])
def test_w006_counts_the_connections_of_async_handlers(registry, monkeypatch, settings, isolation, needed):
    async def charge(job):
        pass

    monkeypatch.setattr(registries, "load_task", None)
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"pool": {"max_size": 9}})
    settings.JOBCHAINS = {"SLOTS": 3, "ASYNC_THREADS": 10}
    part = Processors(isolation=isolation)
    part.register("shop.charge")(charge)
    registry.add(part)
    messages = [message for message in found() if message.id == "jobchains.W006"]
    assert len(messages) == (needed is not None)
    for message in messages:
        assert f"a worker with 3 slots uses up to {needed}" in message.msg
        assert message.hint == (
            f"Set its OPTIONS['pool'] to {{'max_size': {needed}}} or more, "
            "or JOBCHAINS['SLOTS'] or JOBCHAINS['ASYNC_THREADS'] to fewer."
        )


def test_w006_counts_the_connections_for_tasks(monkeypatch, settings):
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"pool": {"max_size": 10}})
    monkeypatch.setattr(registries, "load_task", lambda registry, name: None)
    settings.JOBCHAINS = {"SLOTS": 3}
    [message] = [message for message in found() if message.id == "jobchains.W006"]
    assert "a worker with 3 slots uses up to 11" in message.msg


@pytest.mark.parametrize(
    ("isolation", "system", "problem"),
    [
        (Isolation("process", memory_limit="1G"), "darwin", "memory_limit is enforced on Linux only"),
        (Isolation("process", cpu_seconds=10), "darwin", None),
        (Isolation("transient", cpu_seconds=10), "win32", "child processes need a POSIX system"),
        (Isolation("thread"), "win32", None),
        (Isolation("process", memory_limit="1G"), "linux", None),
    ],
)
def test_w009_isolation_that_the_system_does_not_support(registry, monkeypatch, isolation, system, problem):
    monkeypatch.setattr(limits, "_IS_LINUX", system == "linux")
    if system == "win32":
        monkeypatch.setattr(limits, "os", SimpleNamespace(name="nt"))
    registry.add(charge_slice(isolation=isolation))
    messages = check_isolation()
    assert [message.id for message in messages] == ["jobchains.W009"] * (problem is not None)
    for message in messages:
        assert f"Isolation of 'shop.charge': {problem}" in message.msg
        assert message.hint == "Remove it, or silence this warning if production runs on another system."
