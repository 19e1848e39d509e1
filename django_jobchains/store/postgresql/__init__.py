"""The store for PostgreSQL."""

from django_jobchains.store.base import Store
from django_jobchains.store.keys import KeyRows
from django_jobchains.store.postgresql.claim import SkipScan
from django_jobchains.store.postgresql.dialect import PostgreSQLDatabase


class PostgreSQLStore(Store):
    database_class = PostgreSQLDatabase
    jobs_class = SkipScan
    keys_class = KeyRows
