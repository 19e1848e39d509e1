"""Connections notice that the network is gone: a worker's own do, and others are told how."""

from typing import Any

import pytest
from django.core import checks
from django.db import connections

from django_jobchains.checks import check_network
from django_jobchains.network import NETWORK_OPTIONS, missing_options, notice_dead_networks


@pytest.fixture(autouse=True)
def _over_network(monkeypatch: pytest.MonkeyPatch) -> None:
    describe(monkeypatch)


def describe(
    monkeypatch: pytest.MonkeyPatch, vendor: str = "postgresql", host: str = "db.invalid", **options: Any
) -> None:
    monkeypatch.setattr(connections["default"], "vendor", vendor)
    monkeypatch.setitem(connections.settings["default"], "HOST", host)
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)


def test_a_worker_process_completes_what_is_missing_and_leaves_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    describe(monkeypatch, connect_timeout=30, application_name="shop")
    notice_dead_networks()
    options = {**NETWORK_OPTIONS, "connect_timeout": 30, "application_name": "shop"}
    assert connections["default"].settings_dict["OPTIONS"] == options


@pytest.mark.parametrize(("vendor", "host"), [("sqlite", "db.invalid"), ("postgresql", ""), ("postgresql", "/run")])
def test_where_there_is_no_network_nothing_is_missing(monkeypatch: pytest.MonkeyPatch, vendor: str, host: str) -> None:
    describe(monkeypatch, vendor, host)
    notice_dead_networks()
    assert missing_options("default") == {}
    assert connections.settings["default"]["OPTIONS"] == {}


def test_w002_connections_that_do_not_notice_a_dead_network(monkeypatch: pytest.MonkeyPatch) -> None:
    describe(monkeypatch, connect_timeout=30)
    (message,) = check_network()
    assert isinstance(message, checks.Warning)
    assert message.id == "jobchains.W002"
    assert "'default'" in message.msg
    assert message.hint is not None
    assert "'tcp_user_timeout': 8000" in message.hint
    assert "connect_timeout" not in message.hint
    describe(monkeypatch, **NETWORK_OPTIONS)
    assert check_network() == []


def test_w002_is_a_matter_of_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**options: Any) -> list[str | None]:
        messages = checks.run_checks(tags=["jobchains"], **options)
        return [message.id for message in messages if message.id == "jobchains.W002"]

    assert found() == []
    assert found(include_deployment_checks=True) == ["jobchains.W002"]
