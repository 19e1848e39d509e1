"""An entry of ``CACHES``, for a notifier whose server is the project's cache server. Knows no driver."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

NAME_ANOTHER = "Name another entry: JOBCHAINS['NOTIFIER'] = {'BACKEND': …, 'OPTIONS': {'cache': …}}."


class CacheEntry:
    """Wrong settings are said at once; nothing is connected."""

    def __init__(self, alias: str) -> None:
        if alias not in caches.settings:
            known = ", ".join(caches.settings)
            raise ImproperlyConfigured(f"CACHES has no entry {alias!r}. Known: {known}. {NAME_ANOTHER}")
        self.name = f"CACHES[{alias!r}]"
        self._parameters: dict[str, Any] = dict(caches.settings[alias])
        self.backend: Any = import_string(self._parameters.pop("BACKEND"))
        self._location = self._parameters.pop("LOCATION", "")
        self.options: Mapping[str, Any] = self._parameters.get("OPTIONS") or {}

    @property
    def urls(self) -> list[str]:
        return self._location.split(",") if isinstance(self._location, str) else list(self._location)

    def check_urls(self) -> None:
        if not all(map(_is_url, self.urls)):
            # Without the text and without the error: either may hold a password.
            problem = "LOCATION is no URL of a server. Is each special character of its password written as %xx?"
            raise ImproperlyConfigured(f"{self.name}: {problem}")

    @property
    def has_credentials(self) -> bool:
        """Whether whoever connects shows a password or a certificate, or is on the same machine."""
        given = [
            self.options,
            *(self.options.get(name) or {} for name in ("CONNECTION_POOL_KWARGS", "REDIS_CLIENT_KWARGS")),
        ]
        names = ("PASSWORD", "password", "credential_provider", "ssl_certfile")
        return any(options.get(name) for options in given for name in names) or _shows_some(self.urls[0])

    def make(self, options: Mapping[str, Any]) -> Any:
        """A cache of this entry with other options, beside the project's own."""
        return self.backend(self._location, {**self._parameters, "OPTIONS": options})


def _is_url(text: object) -> bool:
    try:
        parts = urlsplit(str(text))
        return bool(parts.scheme) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _shows_some(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password or parts.scheme == "unix" or {"password", "ssl_certfile"} & parse_qs(parts.query).keys())
