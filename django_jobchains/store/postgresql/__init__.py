"""The store for PostgreSQL."""

from django_jobchains.store import Store
from django_jobchains.store.deduplication import KeyRows
from django_jobchains.store.postgresql.claim import LimitScan, SkipScan
from django_jobchains.store.postgresql.dialect import PostgreSQLDatabase


class PostgreSQLStore(Store):
    database_class = PostgreSQLDatabase
    jobs_class = SkipScan
    limits_class = LimitScan
    keys_class = KeyRows
