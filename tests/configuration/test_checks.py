"""``manage.py check``: the problem in the message, the remedy in the hint."""

from typing import Any

import pytest
from django.core import checks
from django.core.checks import CheckMessage, Error, run_checks
from django.db import connections
from django.test import override_settings

from django_jobchains.processors import JobType, Processors, Registry, get_registry


def found(**options: Any) -> list[CheckMessage]:
    return [message for message in run_checks(**options) if str(message.id).startswith("jobchains.")]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The project's registry, empty for the test."""
    registry = get_registry()
    monkeypatch.setattr(registry, "slices", [])
    monkeypatch.setattr(registry, "declared", {})
    return registry


@pytest.mark.django_db
def test_a_project_that_is_right_has_nothing_to_mend() -> None:
    assert found(databases=["default"]) == []


@pytest.mark.parametrize("wrong", [{"SLOT": 1}, {"SLOTS": 0}, {"SLOTS": "three"}, {"BACKOFF_JITTER": 2}])
def test_e001_wrong_settings(wrong: dict[str, Any]) -> None:
    with override_settings(JOBCHAINS=wrong):
        (message,) = found(tags=["jobchains"])
    assert isinstance(message, Error)
    assert message.id == "jobchains.E001"
    assert next(iter(wrong)) in message.msg or "wrong type" in message.msg
    assert message.hint == "Correct settings.JOBCHAINS."


def test_wrong_settings_are_one_message_and_no_crash_also_when_databases_are_checked() -> None:
    with override_settings(JOBCHAINS={"SLOT": 1}):
        assert [message.id for message in found(databases=["default"])] == ["jobchains.E001"]


def test_e002_a_database_that_is_not_there() -> None:
    with override_settings(JOBCHAINS={"DATABASE": "jobs"}):
        (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E002"
    assert message.msg == "JOBCHAINS['DATABASE'] is 'jobs', which is not in DATABASES."
    assert message.hint is not None
    assert "default" in message.hint


def test_e003_a_name_of_two_types(registry: Registry) -> None:
    one, other = Processors(), Processors()
    registry.add(one)
    registry.add(other)
    for part in (one, other):
        part.register("shop.charge")(lambda job: None)
    (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E003"
    assert "'shop.charge' is declared twice" in message.msg


def test_e004_a_continuation_that_nobody_declares(registry: Registry) -> None:
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
def test_w001_sqlite_transactions_that_begin_as_readers(
    monkeypatch: pytest.MonkeyPatch, vendor: str, options: dict[str, Any], ids: list[str]
) -> None:
    connection = connections["default"]
    monkeypatch.setattr(connection, "vendor", vendor)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    from django_jobchains.checks import check_database

    messages = check_database(databases=["default"])
    assert [message.id for message in messages] == ids
    for message in messages:
        assert isinstance(message, checks.Warning)
        assert "'default'" in message.msg
        assert message.hint == "Set OPTIONS = {'transaction_mode': 'IMMEDIATE', 'timeout': 20} for it."


def test_databases_are_left_alone_unless_they_are_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {})
    assert found() == []


def test_e007_required_middleware_that_is_none(registry: Registry) -> None:
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": ["no.such.Middleware"]}):
        (message,) = found()
    assert isinstance(message, Error)
    assert message.id == "jobchains.E007"
    assert "'no.such.Middleware' cannot be imported" in message.msg


def test_w003_a_slice_without_required_middleware(registry: Registry) -> None:
    part = Processors()
    part.register("shop.charge")(lambda job: None)
    registry.add(part)
    with override_settings(JOBCHAINS={"REQUIRED_MIDDLEWARE": ["django_jobchains.middleware.ActorContext"]}):
        (message,) = found()
    assert isinstance(message, checks.Warning)
    assert message.id == "jobchains.W003"
    assert "the slice with shop.charge lacks django_jobchains.middleware.actor_context.ActorContext" in message.msg
