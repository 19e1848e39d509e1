"""Wake-ups over Redis: hints by PUBLISH, and wake budgets by a script. If Redis loses any, jobs only start later."""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_jobchains.notifications.base import (
    Listener,
    ListeningThread,
    Notifier,
    Subscribers,
    WarningThrottle,
    default_prefix,
    logger,
)
from django_jobchains.notifications.hints import KINDS, Hint, HintKind, decode, encode, few
from django_jobchains.text.errors import describe, log_text
from django_jobchains.values import Duration, DurationLike

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
#: The first and the longest time in which Redis is not called after a failure.
MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 10.0
#: How long a wake budget is kept. Workers that receive a hint ask within milliseconds.
BUDGET_SECONDS = 10
#: A listener's timeout for connecting and for each response.
LISTEN_SECONDS = 2.0
#: A listener that received nothing for this time sends a PING, and gives up after the same time again.
PROBE_SECONDS = 5.0
#: How often a listener checks whether it is to close.
TICK_SECONDS = 0.2

#: KEYS: the counter. ARGV: the limit, the number of jobs, and for how many seconds the counter is kept.
TAKE = """
local taken = tonumber(redis.call('GET', KEYS[1]) or 0)
local share = math.min(tonumber(ARGV[1]), tonumber(ARGV[2]) - taken)
if share <= 0 then return 0 end
redis.call('SET', KEYS[1], taken + share, 'EX', ARGV[3])
return share
"""


class RedisNotifier(Notifier):
    """Sends through the Redis of an entry of ``CACHES`` whose backend is django-redis.

    ``cache``: the name of the entry. It determines address, password, TLS, Sentinel and Cluster; connections and
    timeouts are separate. ``prefix``: the prefix of channels and keys, different for each project that shares the
    Redis. The default is ``"django_jobchains"``, and ``"django_jobchains.<alias>"`` for a database other than
    ``JOBCHAINS["DATABASE"]``. ``timeout_seconds``: how long an enqueue waits to connect, and for each response.
    """

    def __init__(
        self, using: str, cache: str = "default", prefix: str | None = None, timeout_seconds: DurationLike = 0.2
    ) -> None:
        super().__init__(using)
        prefix = default_prefix(using) if prefix is None else prefix
        self.entry = CacheEntry(cache)
        self.channels: dict[HintKind, str] = {kind: f"{prefix}.{kind}" for kind in KINDS}
        self._prefix = prefix
        self._connections = Connections(self.entry, Duration().check("timeout_seconds", timeout_seconds))
        self._breaker = CircuitBreaker(*OUTAGES)
        self._budget_throttle = WarningThrottle()

    def send(self, hints: Collection[Hint]) -> None:
        with self._breaker.attempt(), self._connections.client() as client:
            pipeline = client.pipeline(transaction=False)
            for hint in few(hints):
                pipeline.publish(self.channels[hint.kind], encode(hint))
            pipeline.execute()

    def connect(self, subscribers: Subscribers) -> Listener:
        return RedisListener(self, subscribers)

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        if hint.count is None or not hint.id:
            return None
        key = f"{self._prefix}:taken:{group}:{hint.id}"
        try:
            with self._breaker.attempt(), self._connections.client(key) as client:
                return int(client.register_script(TAKE)([key], [limit, hint.count, BUDGET_SECONDS]))
        except Exception as error:
            if self._budget_throttle.allows():
                text = "Redis does not distribute wake-ups, so every idle worker queries: %s"
                logger.warning(text, log_text(error))
            return None

    def close(self) -> None:
        self._connections.close()

    def security_problem(self) -> str | None:
        if self.entry.has_credentials:
            return None
        return f"the Redis of {self.entry.name} is used without a password or a certificate"


class RedisListener(ListeningThread):
    kinds = frozenset()

    def __init__(self, notifier: RedisNotifier, subscribers: Subscribers) -> None:
        self._channels = notifier.channels
        self._kinds = {channel: kind for kind, channel in notifier.channels.items()}
        #: Redis confirms each subscription later; then its kind is in ``kinds``.
        self._requested: frozenset[HintKind] = frozenset()
        self._connections = Connections(notifier.entry, LISTEN_SECONDS)
        super().__init__(f"jobchains-listener-{notifier.using}", subscribers)

    def watch(self) -> None:
        self.kinds = self._requested = frozenset()
        try:
            with self._connections.connection() as connection:
                self._subscribe(connection)
                self._receive(connection)
        finally:
            if self.closing.is_set():
                self._connections.close()

    def _receive(self, connection: Any) -> None:
        received_at, was_probed = time.monotonic(), False
        while not self.closing.is_set():
            if connection.can_read(TICK_SECONDS):
                self._pass_on(connection.read_response())
                received_at, was_probed = time.monotonic(), False
            elif time.monotonic() - received_at >= PROBE_SECONDS * (1 + was_probed):
                if was_probed:
                    raise TimeoutError("Redis no longer responds")
                connection.send_command("PING")
                was_probed = True
            self._subscribe(connection)

    def _subscribe(self, connection: Any) -> None:
        wanted, requested = self.subscribers.kinds, self._requested
        if wanted != requested:
            self._request(connection, "SUBSCRIBE", wanted - requested)
            self._request(connection, "UNSUBSCRIBE", requested - wanted)
            self._requested = wanted
            self.kinds &= wanted

    def _request(self, connection: Any, command: str, kinds: Collection[HintKind]) -> None:
        if kinds:
            connection.send_command(command, *sorted(self._channels[kind] for kind in kinds))

    def _pass_on(self, answer: Any) -> None:
        """Pass on a hint. Drop anything else, because anyone who may publish may have written it."""
        if not isinstance(answer, list) or len(answer) != 3:
            return  # the response to a PING
        event, channel, value = answer
        kind = self._kinds[channel.decode()]
        if event == b"subscribe":
            self.kinds |= {kind} & self._requested
            if self.is_alive:
                self.subscribers.resync({kind})
            elif self.kinds == self._requested:
                self.connected()
        elif event == b"message" and (hint := decode(kind, value)):
            self.subscribers(hint)


class Unreachable(Exception):
    """The call was not attempted, because the server did not respond a moment ago."""

    def __init__(self, seconds: float, error: BaseException) -> None:
        super().__init__(f"the server is not called for another {seconds:.1f} s, after {describe(error)}")


class CircuitBreaker:
    """Rejects calls for a while after a failure. Each further failure doubles the pause, and any response ends it.

    ``failures``: the exceptions that mean that the server is unavailable. Any other exception is a response.
    """

    def __init__(self, *failures: type[Exception]) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._pause = MIN_PAUSE_SECONDS
        self._next_at = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Raise ``Unreachable`` during a pause. After it, one caller probes the server while the others still fail."""
        with self._lock:
            is_probe = self._error is not None
            if self._error is not None:
                now = time.monotonic()
                if now < self._next_at:
                    raise Unreachable(self._next_at - now, self._error)
                self._next_at = now + self._pause
        try:
            yield
        except self._failures as error:
            with self._lock:
                if is_probe or self._error is None:  # calls that were under way at the first failure count only once
                    self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS) if is_probe else MIN_PAUSE_SECONDS
                    self._error, self._next_at = error, time.monotonic() + self._pause
            raise
        except Exception:
            self._close()
            raise
        self._close()

    def _close(self) -> None:
        with self._lock:
            self._error = None


class CacheEntry:
    """An entry of ``CACHES``. Raises ``ImproperlyConfigured`` if it cannot be used, and does not connect."""

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
        url = urlsplit(self._urls[0])
        is_in_query = {"password", "ssl_certfile"} & parse_qs(url.query).keys()
        return bool(is_in_options or url.password or url.scheme == "unix" or is_in_query)

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
        #: Whether the cluster may have other nodes by now.
        self._is_stale = False

    @contextmanager
    def client(self, key: str = "") -> Iterator[Redis]:
        """A client of the server, or of the cluster node that has the key."""
        try:
            yield self._client(key)
        except (RedisError, RedisClusterException, OSError):
            self._is_stale = isinstance(self._connected, RedisCluster)
            raise

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Yield a connection that no other thread uses."""
        with self.client() as client:
            # The pool would count each attempt to connect as another connection, and refuse once it reaches its limit.
            pool: Any = client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)
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
        connected: Any = self._connect() if self._connected is None or self._is_stale else self._connected
        client: Redis = connected
        if isinstance(connected, RedisCluster):
            # The cluster's own client would retry for longer than an enqueue may wait.
            cluster: Any = connected
            node = cluster.get_node_from_key(key) if key else cluster.get_random_node()
            client = cluster.get_redis_connection(node)
            _enforce_options(client.connection_pool, self._seconds)
        return client

    def _connect(self) -> Any:
        """Create the client, or find the nodes of its cluster again, by all nodes that it knows.

        That queries the nodes, so waiting threads do not repeat it if it failed.
        """
        started_at = time.monotonic()
        with self._lock:
            if self._connected is None or self._is_stale:
                if self._failed_at > started_at:
                    raise RedisConnectionError("another thread could not connect either")
                try:
                    if self._connected is None:
                        self._connected = self._entry.create_client(self._seconds)
                    else:
                        self._connected.nodes_manager.initialize()
                except BaseException:
                    self._failed_at = time.monotonic()
                    raise
                self._is_stale = False
                if not isinstance(self._connected, RedisCluster):
                    _enforce_options(self._connected.connection_pool, self._seconds)
            return self._connected


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
