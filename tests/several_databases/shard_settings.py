"""Settings of workers of four shards: databases on the test's server, to which a router sends the business models."""

from copy import deepcopy

from django_jobchains import current_database
from tests.support.worker_settings import *  # noqa: F403
from tests.support.worker_settings import DATABASES

SHARDS = [f"shard_{number}" for number in range(1, 5)]
BUSINESS = {"records", "shop"}


def shard(default, alias):
    """Return the settings of a shard, given those of the test's database."""
    return {**deepcopy(default), "NAME": f"{default['NAME']}_{alias}"}


class ShardRouter:
    """Sends the business models to the current database, and all others to ``default``."""

    def db_for_read(self, model, **hints):
        return current_database() if model._meta.app_label in BUSINESS else None

    db_for_write = db_for_read

    def allow_relation(self, first, second, **hints):
        return first._state.db == second._state.db

    def allow_migrate(self, db, app_label, **hints):
        return db == "default" or app_label in {*BUSINESS, "django_jobchains"}


DATABASES = {**DATABASES, **{alias: shard(DATABASES["default"], alias) for alias in SHARDS}}
DATABASE_ROUTERS = [ShardRouter()]
