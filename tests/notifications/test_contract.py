"""The contract, for each notifier that needs no server of its own."""

import pytest
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
