"""Connections with network options notice a dead network: workers set the options, and a system check suggests them."""

import pytest
from django.core import checks
from django.db import connections

from django_jobchains import store
from django_jobchains.db.libpq import NETWORK_OPTIONS, add_network_options, missing_network_options
from django_jobchains.declare.checks import check_network


@pytest.fixture(autouse=True)
def _over_network(monkeypatch):
    """Tests after these must not get a store of another vendor, which the checks create if it is the first."""
    configure(monkeypatch)
    monkeypatch.setattr(store, "_stores", {})
    store._store.cache_clear()
    yield
    store._store.cache_clear()


def configure(monkeypatch, vendor="postgresql", host="db.invalid", **options):
    monkeypatch.setattr(connections["default"], "vendor", vendor)
    monkeypatch.setitem(connections.settings["default"], "HOST", host)
    monkeypatch.setitem(connections.settings["default"], "OPTIONS", options)


def test_a_worker_process_adds_missing_options_and_keeps_the_others(monkeypatch):
    configure(monkeypatch, connect_timeout=30, application_name="shop")
    add_network_options()
    options = {**NETWORK_OPTIONS, "connect_timeout": 30, "application_name": "shop"}
    assert connections["default"].settings_dict["OPTIONS"] == options


@pytest.mark.parametrize(("vendor", "host"), [("sqlite", "db.invalid"), ("postgresql", ""), ("postgresql", "/run")])
def test_local_databases_need_no_options(monkeypatch, vendor, host):
    configure(monkeypatch, vendor, host)
    add_network_options()
    assert missing_network_options("default") == {}
    assert connections.settings["default"]["OPTIONS"] == {}


def test_w002_connections_without_network_options(monkeypatch):
    configure(monkeypatch, connect_timeout=30)
    (message,) = check_network()
    assert isinstance(message, checks.Warning)
    assert message.id == "jobchains.W002"
    assert "'default'" in message.msg
    assert message.hint is not None
    assert "'tcp_user_timeout': 8000" in message.hint
    assert "connect_timeout" not in message.hint
    configure(monkeypatch, **NETWORK_OPTIONS)
    assert check_network() == []


def test_w002_is_a_deployment_check(monkeypatch):
    def found(**options):
        messages = checks.run_checks(tags=["jobchains"], **options)
        return [message.id for message in messages if message.id == "jobchains.W002"]

    assert found() == []
    assert found(include_deployment_checks=True) == ["jobchains.W002"]
