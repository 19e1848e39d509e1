"""The contract of a store as third parties run it, for the one that ships for this database."""

from django.db import connection

from django_jobchains.testing.contracts import StoreContract


class TestShipped(StoreContract):
    locks_rows = connection.vendor != "sqlite"
