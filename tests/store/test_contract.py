"""The public contract tests, for the included store of this database."""

from django.db import connection

from django_jobchains.testing.contracts import StoreContract


class TestShipped(StoreContract):
    locks_rows = connection.vendor != "sqlite"
