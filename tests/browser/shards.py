"""The URLs and the router of a shop with two databases."""

from config.urls import urlpatterns as of_shop
from django.urls import path

from django_jobchains import current_database
from django_jobchains.admin import DatabaseSite

urlpatterns = [path("shard/", DatabaseSite("shard").urls), *of_shop]

SHARDED = {"shop", "django_jobchains"}


class ShardRouter:
    """Uses the current database for the tables of the shop and of the jobs, and "default" for users and sessions."""

    def db_for_read(self, model, **hints):
        return current_database() if model._meta.app_label in SHARDED else None

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return db == "default" or app_label in SHARDED
