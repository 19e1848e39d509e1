"""The contract, for each notifier that ships."""

import pytest
from django.db import connection

from django_jobchains.notifications import NullNotifier
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


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
class TestPostgres(NotifierContract):
    def make(self):
        from django_jobchains.notifications.postgres import PostgresNotifier

        return PostgresNotifier("default")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite")
@pytest.mark.django_db(transaction=True)
class TestSqlite(NotifierContract):
    carries_hints = False

    def make(self):
        from django_jobchains.notifications.sqlite import SqliteNotifier

        return SqliteNotifier("default")
