"""The store: the only package that changes a status, and the only one with SQL."""

from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.store.base import Store

__all__ = ("Store", "get_store")


def get_store(using: str | None = None) -> Store:
    """Return the store of a database alias; None is ``JOBCHAINS["DATABASE"]``.

    The store is the one for the vendor, or an instance of the class that ``JOBCHAINS`` names for the alias. Raises
    ``ImproperlyConfigured``. Every public call validates its ``using`` here.
    """
    alias: Any = using
    if isinstance(alias, str | None) and (found := _stores.get(alias)):
        return found
    settings = get_settings()
    alias = settings.DATABASE if using is None else using
    if not isinstance(alias, str) or alias not in connections.settings:
        known = ", ".join(connections.settings)
        argument = "JOBCHAINS['DATABASE']" if using is None else "using"
        raise ImproperlyConfigured(f"{argument}={alias!r:.100} is not an alias in DATABASES. Known: {known}.")
    store = _stores[using] = _store(alias, settings.of(alias, "STORE"))
    return store


#: The stores of the arguments of ``get_store``, with the current settings.
_stores: dict[str | None, Store] = {}


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in ("JOBCHAINS", "DATABASES"):
        _stores.clear()


setting_changed.connect(_on_setting_changed)


@lru_cache(maxsize=32)
def _store(using: str, path: str | None) -> Store:
    return _of_vendor(using) if path is None else _given(path, using)


def _given(path: str, using: str) -> Store:
    try:
        store = import_string(path)(using)
    except (ImportError, AttributeError, TypeError) as error:
        raise ImproperlyConfigured(f"{_setting(using)}: {path} cannot be used: {error}") from error
    if not isinstance(store, Store):
        raise ImproperlyConfigured(f"{_setting(using)}: {path} is not a subclass of django_jobchains.store.Store.")
    return store


def _of_vendor(using: str) -> Store:
    vendor = connections[using].vendor
    if vendor == "postgresql":
        try:
            from django_jobchains.store.postgresql import PostgreSQLStore
        except ImportError as error:
            raise ImproperlyConfigured("PostgreSQL needs psycopg 3: install django_jobchains[postgres].") from error
        return PostgreSQLStore(using)
    if vendor == "sqlite":
        from django_jobchains.store.sqlite import SQLiteStore

        return SQLiteStore(using)
    raise ImproperlyConfigured(
        f"django_jobchains keeps jobs in PostgreSQL or SQLite; {using!r} is {vendor}. "
        f"Another database needs a custom store, {_setting(using)}."
    )


def _setting(using: str) -> str:
    return get_settings().name_of(using, "STORE")
