"""Connections to the Redis of an entry of ``CACHES`` whose backend is django-redis."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

try:
    from django_redis.cache import RedisCache
    from django_redis.client import ShardClient
except ImportError as error:
    text = f"Wake-ups by Redis need django-redis: install django_jobchains[redis] ({error})."
    raise ImproperlyConfigured(text) from error

from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

#: The exceptions that mean that Redis is unavailable.
OUTAGES = (RedisConnectionError, RedisTimeoutError, RedisClusterException, OSError)

_NAME_ANOTHER = "Name another entry: JOBCHAINS['NOTIFIER'] = {'BACKEND': …, 'OPTIONS': {'cache': …}}."

#: Connection options that would change the form of responses, or send a command twice.
_REMOVED_OPTIONS = ("cache", "cache_config", "maint_notifications_config", "retry_on_error", "retry_on_timeout")


class CacheEntry:
    """An entry of ``CACHES``. Raises ``ImproperlyConfigured`` at once if it cannot be used; does not connect."""

    def __init__(self, alias: str) -> None:
        if alias not in caches.settings:
            known = ", ".join(caches.settings)
            raise ImproperlyConfigured(f"CACHES has no entry {alias!r}. Known: {known}. {_NAME_ANOTHER}")
        self.name = f"CACHES[{alias!r}]"
        self._parameters: dict[str, Any] = dict(caches.settings[alias])
        self._backend: Any = import_string(self._parameters.pop("BACKEND"))
        self._location = self._parameters.pop("LOCATION", "")
        self.options: Mapping[str, Any] = self._parameters.get("OPTIONS") or {}
        self._urls = self._location.split(",") if isinstance(self._location, str) else list(self._location)
        self._check()

    def _check(self) -> None:
        if not (isinstance(self._backend, type) and issubclass(self._backend, RedisCache)):
            problem = "does not use django-redis (BACKEND 'django_redis.cache.RedisCache')"
            raise ImproperlyConfigured(f"{self.name} {problem}. {_NAME_ANOTHER}")
        client = self.options.get("CLIENT_CLASS")
        if client and issubclass(import_string(client), ShardClient):
            problem = "distributes keys over several servers, but wake-ups need one"
            raise ImproperlyConfigured(f"{self.name} {problem}. {_NAME_ANOTHER}")
        if not all(map(_is_url, self._urls)):
            # Neither the URL nor the error is quoted: both may contain a password.
            problem = "LOCATION is not the URL of a server. Is each special character of its password written as %xx?"
            raise ImproperlyConfigured(f"{self.name}: {problem}")

    @property
    def has_credentials(self) -> bool:
        """Whether connections use a password or a certificate, or stay on the same machine."""
        pools = (self.options.get(name) or {} for name in ("CONNECTION_POOL_KWARGS", "REDIS_CLIENT_KWARGS"))
        names = ("PASSWORD", "password", "credential_provider", "ssl_certfile")
        is_in_options = any(options.get(name) for options in (self.options, *pools) for name in names)
        return is_in_options or _has_credentials(self._urls[0])

    def create_client(self, seconds: float) -> Any:
        """Return a client as the cache would create it, with these timeouts, no retries, and its own pool."""
        cache = self._backend(self._location, {**self._parameters, "OPTIONS": _cache_options(self.options, seconds)})
        # Otherwise it would share the pools of all caches of the process.
        cache.client.connection_factory._pools = {}
        return cache.client.get_client(write=True)


class Connections:
    """Connections to the server of an entry, or to the nodes of its cluster.

    ``seconds``: the timeout for connecting and for each response.
    """

    def __init__(self, entry: CacheEntry, seconds: float) -> None:
        self._entry = entry
        self._seconds = seconds
        self._lock = threading.Lock()
        self._failed_at = 0.0
        self._connected: Any = None

    @contextmanager
    def client(self, key: str = "") -> Iterator[Redis]:
        """A client of the server, or of the cluster node that has the key."""
        try:
            yield self._client(key)
        except (RedisError, RedisClusterException):
            if isinstance(self._connected, RedisCluster):
                self.close()  # the cluster may have other nodes by now
            raise

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Yield a connection that no other thread uses."""
        with self.client() as client:
            connection: Any = client.connection_pool.make_connection()
            try:
                connection.connect()
                yield connection
            finally:
                connection.disconnect()

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if isinstance(connected, RedisCluster):
            connected.close()
        elif connected is not None:
            connected.connection_pool.disconnect()

    def _client(self, key: str) -> Redis:
        connected: Any = self._connected or self._connect()
        client: Redis = connected
        if isinstance(connected, RedisCluster):
            # The cluster's own client would retry for longer than an enqueue may wait.
            client = connected.get_redis_connection(_node(connected, key))
            _enforce_options(client.connection_pool, self._seconds)
        return client

    def _connect(self) -> Any:
        """Create the client. For a cluster, that queries its nodes: waiting threads do not repeat it if it failed."""
        started_at = time.monotonic()
        with self._lock:
            if self._connected is None:
                if self._failed_at > started_at:
                    raise RedisConnectionError("another thread could not connect either")
                self._connected = self._try_to_connect()
            return self._connected

    def _try_to_connect(self) -> Any:
        try:
            client = self._entry.create_client(self._seconds)
        except BaseException:
            self._failed_at = time.monotonic()
            raise
        if not isinstance(client, RedisCluster):
            _enforce_options(client.connection_pool, self._seconds)
        return client


def _node(cluster: Any, key: str) -> Any:
    return cluster.get_node_from_key(key) if key else cluster.get_random_node()


def _cache_options(options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    pool_options = {**(options.get("CONNECTION_POOL_KWARGS") or {}), **_connection_options(seconds)}
    for name in _REMOVED_OPTIONS:
        pool_options.pop(name, None)
    sentinel_options = options.get("SENTINEL_KWARGS") or {
        name: value for name, value in pool_options.items() if name.startswith("socket_")
    }
    return {
        **options,
        "SOCKET_TIMEOUT": seconds,
        "SOCKET_CONNECT_TIMEOUT": seconds,
        "CONNECTION_POOL_KWARGS": pool_options,
        "SENTINEL_KWARGS": {**sentinel_options, **_timeout_options(seconds)},
    }


def _timeout_options(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": Retry(NoBackoff(), 0)}


def _connection_options(seconds: float) -> dict[str, Any]:
    """Responses are bytes, so that invalid text does no harm, and messages are like other responses (protocol 2)."""
    return {**_timeout_options(seconds), "protocol": 2, "decode_responses": False, "health_check_interval": 0}


def _enforce_options(pool: Any, seconds: float) -> None:
    """Set the options of an existing pool: options in a URL take precedence over options of the cache."""
    pool.connection_kwargs.update(_connection_options(seconds))
    if isinstance(pool, BlockingConnectionPool):
        pool.timeout = seconds


def _is_url(text: object) -> bool:
    try:
        parts = urlsplit(str(text))
        return bool(parts.scheme) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _has_credentials(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password or parts.scheme == "unix" or {"password", "ssl_certfile"} & parse_qs(parts.query).keys())
