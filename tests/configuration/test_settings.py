"""``JOBCHAINS``: defaults, errors for unknown keys and invalid values, and overrides in tests."""

import math
from dataclasses import fields
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test import override_settings

from django_jobchains.conf import Settings, get_settings
from django_jobchains.notifications import NullNotifier, get_notifier
from django_jobchains.processors import JobType, Processors, Registry
from django_jobchains.worker import Worker

DEFAULTS = {
    "DATABASE": "default",
    "DATABASES": {},
    "NOTIFIER": {},
    "SLOTS": 10,
    "QUEUE": "default",
    "POLL_SECONDS": 60,
    "LEASE_SECONDS": 60,
    "REAP_SECONDS": 10,
    "HEARTBEAT_SECONDS": 10,
    "BACKOFF_INITIAL_SECONDS": 10,
    "BACKOFF_MULTIPLIER": 2,
    "BACKOFF_MAXIMUM_SECONDS": 3600,
    "BACKOFF_JITTER": 0.1,
    "BACKOFF": None,
    "MAX_ATTEMPTS": 25,
    "TIMEOUT_SECONDS": math.inf,
    "PRUNE_SECONDS": 60,
    "RETENTION_COMPLETED_SECONDS": 30 * 24 * 3600,
    "RETENTION_CANCELLED_SECONDS": 30 * 24 * 3600,
    "RETENTION_FAILED_SECONDS": None,
    "RETENTION_KEEPS_KEYED": True,
    "REQUIRE_TRANSACTION": False,
    "OTHER_TRANSACTION": "warn",
    "MAX_CRASHES": 10,
    "SHUTDOWN_SECONDS": 30,
    "MAX_PAYLOAD_BYTES": 1024 * 1024,
    "MAX_PAYLOAD_DEPTH": 100,
}
NULL = {"BACKEND": "django_jobchains.notifications.NullNotifier"}


def test_every_key_has_a_default(settings):
    del settings.JOBCHAINS
    assert {key: getattr(get_settings(), key) for key in DEFAULTS} == DEFAULTS


def test_an_unknown_key_is_an_error_that_names_the_known_ones(settings):
    settings.JOBCHAINS = {"SLOT": 3, "POLL": 4, "SLOTS": 5}
    with pytest.raises(ImproperlyConfigured, match=r"Unknown keys in JOBCHAINS: POLL, SLOT\. Known: .*SLOTS"):
        get_settings()


#: One wrong value for each key. The kinds of values are tested in ``test_values``.
WRONG = {
    **dict.fromkeys([field.name for field in fields(Settings) if field.name.endswith("_SECONDS")], 0),
    **dict.fromkeys(["SLOTS", "ASYNC_SLOTS", "ASYNC_THREADS", "MAX_STUCK_SLOTS", "MAX_CRASHES", "MAX_ATTEMPTS"], 0),
    **dict.fromkeys(["MAX_PAYLOAD_BYTES", "MAX_PAYLOAD_DEPTH"], "3"),
    **dict.fromkeys(["RETENTION_KEEPS_KEYED", "REQUIRE_TRANSACTION", "TRACE_BAGGAGE"], "yes"),
    "ALERT_FAILURE_RATE": 1.5,
    "ALERT_MIN_ATTEMPTS": 0,
    "ALERT_FAILED_JOBS": 0,
    "BACKOFF_JITTER": 1.5,
    "BACKOFF_MULTIPLIER": 0.5,
    "BACKOFF": 10,
    "OTHER_TRANSACTION": True,
    "TRACE_PROPAGATION": "child",
    "TRACE_URL": "https://traces.example.com",
    "QUEUE": "",
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_value_is_an_error_that_names_the_setting(settings, name):
    settings.JOBCHAINS = {name: WRONG[name]}
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match=rf"JOBCHAINS\['{name}'\]"):
            get_settings()


def test_every_setting_with_a_simple_value_is_checked():
    checked_otherwise = {"DATABASE", "DATABASES", "STORE", "NOTIFIER", "ISOLATION", "PAYLOAD_CODEC"}
    checked_otherwise |= {"REQUIRED_MIDDLEWARE", "SENSITIVE_FIELDS"}
    assert {field.name for field in fields(Settings)} - checked_otherwise == set(WRONG)


@pytest.mark.parametrize("wrong", [None, ["SLOTS"], "SLOTS"])
def test_the_settings_are_a_dict(settings, wrong):
    settings.JOBCHAINS = wrong
    with pytest.raises(ImproperlyConfigured, match="JOBCHAINS must be a dict"):
        get_settings()


def test_a_timedelta_is_stored_as_seconds(settings):
    settings.JOBCHAINS = {"POLL_SECONDS": timedelta(minutes=2)}
    assert get_settings().POLL_SECONDS == 120


def test_overrides_take_effect_and_are_undone():
    before = get_settings()
    with override_settings(JOBCHAINS={"SLOTS": 3}):
        assert get_settings().SLOTS == 3
        with override_settings(JOBCHAINS={"SLOTS": 4}):
            assert get_settings().SLOTS == 4
        assert get_settings().SLOTS == 3
    assert get_settings() == before


def test_the_slots_of_a_worker_come_from_the_settings_by_default(settings):
    settings.JOBCHAINS = {"SLOTS": 3}
    processors, registry = Processors(), Registry()
    processors.register("any")(lambda job: None)
    registry.add(processors)
    assert Worker(registry=registry).options.slots == 3
    assert Worker(registry=registry, slots=2).options.slots == 2
    for options in ({"slots": 0}, {"max_jobs": 0}):
        with pytest.raises(ImproperlyConfigured, match="=0 is not a whole number from 1"):
            Worker(registry=registry, **options)


def test_the_default_notifier_depends_on_the_database_and_another_can_be_configured(settings):
    del settings.JOBCHAINS
    names = {"postgresql": "PostgresNotifier", "sqlite": "SqliteNotifier"}
    assert type(get_notifier("default")).__name__ == names[connection.vendor]
    settings.JOBCHAINS = {"NOTIFIER": NULL}
    notifier = get_notifier("default")
    assert type(notifier) is NullNotifier
    assert notifier.using == "default"
    assert get_notifier("default") is notifier


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"BACKEND": "no.such.Notifier"}, r"no\.such\.Notifier cannot be used"),
        ({"BACKEND": "django_jobchains.notifications.NoNotifier"}, "NoNotifier cannot be used"),
        ({**NULL, "OPTIONS": {"host": "x"}}, "NullNotifier cannot be used: .*host"),
        ({**NULL, "HOST": "x"}, r"Unknown keys in JOBCHAINS\['NOTIFIER'\]: HOST\. Known: BACKEND, OPTIONS"),
    ],
)
def test_an_unusable_notifier_is_an_error_that_names_it(settings, wrong, words):
    settings.JOBCHAINS = {"NOTIFIER": wrong}
    with pytest.raises(ImproperlyConfigured, match=words):
        JobType("any").enqueue()
