"""``manage.py check``: the problem is in the message, the remedy in the hint."""

from types import SimpleNamespace

import pytest
from django.core import checks
from django.core.checks import Error, run_checks
from django.db import connections
from django.test import override_settings

from django_jobchains.children import limits
from django_jobchains.declare.checks import check_isolation
from django_jobchains.isolation import Isolation
from django_jobchains.processors import JobType, Processors, get_registry

#: Django's own checks of JSON fields query SQLite.
pytestmark = pytest.mark.django_db


def found(**options):
    return [message for message in run_checks(**options) if str(message.id).startswith("jobchains.")]


@pytest.fixture
def registry(monkeypatch):
    """Empty the registry of the project for the test."""
    registry = get_registry()
    monkeypatch.setattr(registry, "slices", [])
    monkeypatch.setattr(registry, "declared", {})
    return registry


def test_a_valid_project_has_no_messages():
    assert found(databases=["default"]) == []


@pytest.mark.parametrize("wrong", [{"SLOT": 1}, {"SLOTS": 0}, {"SLOTS": "three"}, {"BACKOFF_JITTER": 2}])
def test_e001_invalid_settings(wrong):
    with override_settings(JOBCHAINS=wrong):
        (message,) = found(tags=["jobchains"])
    assert isinstance(message, Error)
    assert message.id == "jobchains.E001"
    assert next(iter(wrong)) in message.msg or "wrong type" in message.msg
    assert message.hint == "Correct settings.JOBCHAINS."


def test_invalid_settings_are_one_message_when_databases_are_checked():
    with override_settings(JOBCHAINS={"SLOT": 1}):
        assert [message.id for message in found(databases=["default"])] == ["jobchains.E001"]


def test_e002_an_unknown_database():
    with override_settings(JOBCHAINS={"DATABASE": "jobs"}):
        (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E002"
    assert message.msg == "JOBCHAINS['DATABASE'] names 'jobs', which is not in DATABASES."
    assert message.hint is not None
    assert "default" in message.hint


def test_e003_two_types_with_one_name(registry):
    one, other = Processors(), Processors()
    registry.add(one)
    registry.add(other)
    for part in (one, other):
        part.register("shop.charge")(lambda job: None)
    (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E003"
    assert "'shop.charge' is declared twice" in message.msg


def test_e004_an_undeclared_continuation(registry):
    registry.add(JobType("shop.charge", continues_with=["shop.recipt"]))
    (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E004"
    assert message.msg == "'shop.charge' continues_with 'shop.recipt', which no app declares."
    assert message.hint is not None
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
    monkeypatch.setattr(connection, "vendor", vendor)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    from django_jobchains.declare.checks import check_database

    messages = check_database(databases=["default"])
    assert [message.id for message in messages] == ids
    for message in messages:
        assert isinstance(message, checks.Warning)
        assert "'default'" in message.msg
        assert message.hint == "Set its OPTIONS to {'transaction_mode': 'IMMEDIATE', 'timeout': 20}."


def test_databases_are_checked_only_on_request(monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {})
    assert found() == []


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
def test_w006_a_pool_too_small_for_a_worker(monkeypatch, pool, size):
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", {"pool": pool})
    with override_settings(JOBCHAINS={"SLOTS": 3}):
        messages = [message for message in found() if message.id == "jobchains.W006"]
    assert len(messages) == (size is not None)
    for message in messages:
        assert isinstance(message, checks.Warning)
        assert f"'default' has at most {size} connections, but a worker with 3 slots uses up to 9" in message.msg
        assert message.hint == "Set its OPTIONS['pool'] to {'max_size': 9} or more, or JOBCHAINS['SLOTS'] to fewer."


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
    part = Processors(isolation=isolation)
    part.register("shop.charge")(lambda job: None)
    registry.add(part)
    messages = check_isolation()
    assert [message.id for message in messages] == ["jobchains.W009"] * (problem is not None)
    for message in messages:
        assert f"Isolation of 'shop.charge': {problem}" in message.msg
        assert message.hint == "Remove it, or silence this warning if production runs on another system."


def test_e007_required_middleware_that_cannot_be_imported(registry):
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": ["no.such.Middleware"]}):
        (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E007"
    assert "'no.such.Middleware' cannot be imported" in message.msg


def test_w003_a_slice_without_required_middleware(registry):
    part = Processors()
    part.register("shop.charge")(lambda job: None)
    registry.add(part)
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": ["django_jobchains.middleware.ActorContext"]}):
        (message,) = found()
    assert isinstance(message, checks.Warning)
    assert message.id == "jobchains.W003"
    assert "the slice with shop.charge lacks django_jobchains.middleware.actor_context.ActorContext" in message.msg
