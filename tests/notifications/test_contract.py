"""The contract, for each notifier that needs no server of its own, and the setting that selects one."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from django_jobchains.notifications import NullNotifier, get_notifier
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.testing.contracts import NotifierContract


class TestNull(NotifierContract):
    carries_hints = False
    calls_back = False

    def make(self):
        return NullNotifier("default")


class TestInProcess(NotifierContract):
    has_budgets = True

    def make(self):
        return InProcessNotifier("default")


@pytest.mark.django_db(transaction=True)
class TestDefault(NotifierContract):
    """The notifier of the database."""

    carries_hints = connection.vendor == "postgresql"

    def make(self):
        return type(get_notifier("default"))("default")


IN_PROCESS = "django_jobchains.notifications.in_process.InProcessNotifier"
DEFAULT = {"postgresql": "PostgresNotifier", "sqlite": "SqliteNotifier"}[connection.vendor]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({}, DEFAULT),
        ({"BACKEND": IN_PROCESS}, "InProcessNotifier"),
        ({"BACKEND": "django_jobchains.notifications.base.NullNotifier", "OPTIONS": {}}, "NullNotifier"),
    ],
)
def test_setting_selects_one_notifier_for_each_alias(settings, setting, name):
    settings.JOBCHAINS = {"NOTIFIER": setting}
    assert type(get_notifier("default")).__name__ == name
    assert get_notifier("default") is get_notifier("default")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"BACKEND": "no.such.Notifier"}, "no.such.Notifier"),
        ({"BACKEND": "django_jobchains.notifications.base.Nothing"}, "Nothing"),
        ({"BACKEND": "nonsense"}, "nonsense"),
        ({"OPTIONS": {"colour": "red"}}, "colour"),
        ({"URL": "x"}, "URL"),
    ],
)
def test_invalid_setting_raises_improperly_configured(settings, setting, message):
    settings.JOBCHAINS = {"NOTIFIER": setting}
    with pytest.raises(ImproperlyConfigured, match=message):
        get_notifier("default")
