"""Redis: hints by PUBLISH, wake budgets by a script. It holds no truth: whatever it loses costs time alone."""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import RedisClusterException, RedisError
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from django_jobchains.notifications.base import WARN_SECONDS, Notifier, default_prefix, logger
from django_jobchains.notifications.breaker import Breaker
from django_jobchains.notifications.cache_entry import NAME_ANOTHER, CacheEntry
from django_jobchains.notifications.hints import EVERY, KINDS, Hint, HintKind, decode, encode
from django_jobchains.notifications.listening import ListeningThread
from django_jobchains.notifications.subscribing import Listener, Subscribers
from django_jobchains.texts import log_text

#: More subjects than this in one transaction are sent as one "look for yourself".
MOST_HINTS = 50
#: A budget is asked for by those who heard one hint: within milliseconds.
BUDGET_SECONDS = 10
#: For a listener to connect, and for each answer it waits for.
LISTEN_SECONDS = 2.0
#: A listener that heard nothing for so long asks the server to say something, and gives up after as long again.
PROBE_SECONDS = 5.0
#: Between looks at whether the listener is to close.
TICK_SECONDS = 0.2

#: KEYS: the counter. ARGV: the most to take, of how many, for how many seconds that is remembered.
TAKE = """
local taken = tonumber(redis.call('GET', KEYS[1]) or 0)
local share = math.min(tonumber(ARGV[1]), tonumber(ARGV[2]) - taken)
if share <= 0 then return 0 end
redis.call('SET', KEYS[1], taken + share, 'EX', ARGV[3])
return share
"""

#: Of connections: settings that change what an answer looks like, or when a command is sent once more.
_NOT_OURS = ("cache", "cache_config", "maint_notifications_config", "retry_on_error", "retry_on_timeout")


class RedisNotifier(Notifier):
    """Sends by the Redis of an entry of ``CACHES`` whose backend is django-redis.

    ``cache``: the name of the entry. Address, password, TLS, Sentinel and Cluster are what it says; connections and
    timeouts are this notifier's own. ``prefix``: of its channels and keys; give projects that share a Redis one each.
    The default is ``"django_jobchains"``, and ``"django_jobchains.<alias>"`` for another database than
    ``JOBCHAINS["DATABASE"]``.
    ``timeout_seconds``: how long an enqueue may wait for Redis to connect, and for each of its answers.
    """

    def __init__(
        self, using: str, cache: str = "default", prefix: str | None = None, timeout_seconds: float = 0.2
    ) -> None:
        super().__init__(using)
        prefix = default_prefix(using) if prefix is None else prefix
        self.entry = CacheEntry(cache)
        _check(self.entry)
        self.channels: dict[HintKind, str] = {kind: f"{prefix}.{kind}" for kind in KINDS}
        self._prefix = prefix
        self._connections = Connections(self.entry, timeout_seconds)
        self._breaker = Breaker(NoConnection, NoAnswer, RedisClusterException, OSError)
        self._say_at = 0.0

    def send(self, hints: Collection[Hint]) -> None:
        if len(hints) > MOST_HINTS:
            hints = {Hint(hint.kind, EVERY) for hint in hints}
        with self._breaker.attempt(), self._connections.client() as client:
            pipeline = client.pipeline(transaction=False)
            for hint in hints:
                pipeline.publish(self.channels[hint.kind], encode(hint))
            pipeline.execute()

    def connect(self, subscribers: Subscribers) -> Listener:
        return RedisListener(self, subscribers)

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        if hint.count is None or not hint.id:
            return None
        key = f"{self._prefix}:taken:{group}:{hint.id}"
        try:
            with self._breaker.attempt(), self._connections.client(key) as client:
                return int(client.register_script(TAKE)([key], [most, hint.count, BUDGET_SECONDS]))
        except Exception as error:
            self._say_that_budgets_are_unknown(error)
            return None

    def close(self) -> None:
        self._connections.close()

    def unprotected(self) -> str | None:
        if self.entry.has_credentials:
            return None
        return f"the Redis of {self.entry.name} is used without a password or a certificate"

    def _say_that_budgets_are_unknown(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + WARN_SECONDS
            logger.warning("Redis does not share wake-ups out, so every idle worker looks: %s", log_text(error))


class RedisListener(ListeningThread):
    kinds = frozenset()

    def __init__(self, notifier: RedisNotifier, subscribers: Subscribers) -> None:
        self._entry = notifier.entry
        self._channels = notifier.channels
        self._kinds = {channel: kind for kind, channel in notifier.channels.items()}
        self._asked: frozenset[HintKind] = frozenset()
        super().__init__(f"jobchains-listener-{notifier.using}", subscribers)

    def watch(self) -> None:
        self.kinds = self._asked = frozenset()
        connections = Connections(self._entry, LISTEN_SECONDS)
        try:
            with connections.connection() as connection:
                self._follow(connection)
                self._hear(connection)
        finally:
            connections.close()

    def _hear(self, connection: Any) -> None:
        heard_at, was_probed = time.monotonic(), False
        while not self.closing.is_set():
            if connection.can_read(TICK_SECONDS):
                self._pass_on(connection.read_response())
                heard_at, was_probed = time.monotonic(), False
            elif time.monotonic() - heard_at >= PROBE_SECONDS * (1 + was_probed):
                if was_probed:
                    raise NoAnswer("nothing is heard of Redis any more")
                connection.send_command("PING")
                was_probed = True
            self._follow(connection)

    def _follow(self, connection: Any) -> None:
        """Asks for what is wanted now. It counts as heard when Redis has confirmed it."""
        wanted, asked = self.subscribers.kinds, self._asked
        if wanted != asked:
            self._ask(connection, "SUBSCRIBE", wanted - asked)
            self._ask(connection, "UNSUBSCRIBE", asked - wanted)
            self._asked = wanted
            self.kinds &= wanted

    def _ask(self, connection: Any, command: str, kinds: Collection[HintKind]) -> None:
        if kinds:
            connection.send_command(command, *sorted(self._channels[kind] for kind in kinds))

    def _pass_on(self, answer: Any) -> None:
        """Anybody who may publish may have written it: what is no hint of ours is dropped."""
        if not isinstance(answer, list) or len(answer) != 3:
            return  # the answer to a PING
        what, channel, value = answer
        kind = self._kinds[channel.decode()]
        if what == b"subscribe":
            self._subscribed(kind)
        elif what == b"message" and (hint := decode(kind, value)):
            self.subscribers(hint)

    def _subscribed(self, kind: HintKind) -> None:
        self.kinds |= {kind} & self._asked
        if self.is_alive:
            self.subscribers.look({kind})
        elif self.kinds == self._asked:
            self.connected()


class Connections:
    """To the server of an entry, or to the nodes of its cluster. ``seconds``: to connect, and for each answer."""

    def __init__(self, entry: CacheEntry, seconds: float) -> None:
        self._entry = entry
        self._seconds = seconds
        self._lock = threading.Lock()
        self._failed_at = 0.0
        self._made: Any = None

    @contextmanager
    def client(self, key: str = "") -> Iterator[Redis]:
        """Of the server, or of the node of a cluster that has the key."""
        try:
            yield self._client(key)
        except (RedisError, RedisClusterException):
            if isinstance(self._made, RedisCluster):
                self.close()  # by now its nodes may be others
            raise

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """One for the caller alone."""
        with self.client() as client:
            connection: Any = client.connection_pool.make_connection()
            try:
                connection.connect()
                yield connection
            finally:
                connection.disconnect()

    def close(self) -> None:
        made, self._made = self._made, None
        if isinstance(made, RedisCluster):
            made.close()
        elif made is not None:
            made.connection_pool.disconnect()

    def _client(self, key: str) -> Redis:
        made: Any = self._made or self._make()
        client: Redis = made
        if isinstance(made, RedisCluster):
            # Not by the cluster's own client: it tries again, for longer than an enqueue may wait.
            client = made.get_redis_connection(_node(made, key))
            _insist(client.connection_pool, self._seconds)
        return client

    def _make(self) -> Any:
        """To make a cluster's client is to ask its nodes: those who wait for that do not ask again if it failed."""
        asked_at = time.monotonic()
        with self._lock:
            if self._made is None:
                if self._failed_at > asked_at:
                    raise NoConnection("another thread could not connect either")
                self._made = self._try()
            return self._made

    def _try(self) -> Any:
        try:
            made = _client_of(self._entry, self._seconds)
        except BaseException:
            self._failed_at = time.monotonic()
            raise
        if not isinstance(made, RedisCluster):
            _insist(made.connection_pool, self._seconds)
        return made


def _check(entry: CacheEntry) -> None:
    if not (isinstance(entry.backend, type) and issubclass(entry.backend, RedisCache)):
        problem = "is no Redis of django-redis, BACKEND 'django_redis.cache.RedisCache'"
        raise ImproperlyConfigured(f"{entry.name} {problem}. {NAME_ANOTHER}")
    client = entry.options.get("CLIENT_CLASS")
    if client and issubclass(import_string(client), ShardClient):
        raise ImproperlyConfigured(f"{entry.name} spreads keys over servers, and wake-ups need one. {NAME_ANOTHER}")
    entry.check_urls()


def _client_of(entry: CacheEntry, seconds: float) -> Any:
    """As the cache would make it, with these timeouts and no second tries, and a pool of its own."""
    cache = entry.make(_quick_options(entry.options, seconds))
    # Otherwise those of all caches of the process, kept by URL.
    cache.client.connection_factory._pools = {}
    return cache.client.get_client(write=True)


def _quick_options(given: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    of_pool = {**(given.get("CONNECTION_POOL_KWARGS") or {}), **_ours(seconds)}
    for name in _NOT_OURS:
        of_pool.pop(name, None)
    of_sentinels = given.get("SENTINEL_KWARGS") or {
        name: value for name, value in of_pool.items() if name.startswith("socket_")
    }
    return {
        **given,
        "SOCKET_TIMEOUT": seconds,
        "SOCKET_CONNECT_TIMEOUT": seconds,
        "CONNECTION_POOL_KWARGS": of_pool,
        "SENTINEL_KWARGS": {**of_sentinels, **_quick(seconds)},
    }


def _node(cluster: Any, key: str) -> Any:
    return cluster.get_node_from_key(key) if key else cluster.get_random_node()


def _quick(seconds: float) -> dict[str, Any]:
    return {"socket_timeout": seconds, "socket_connect_timeout": seconds, "retry": Retry(NoBackoff(), 0)}


def _ours(seconds: float) -> dict[str, Any]:
    """Bytes, so that what is no text does no harm; the older protocol, where a message is an answer like others."""
    return {**_quick(seconds), "protocol": 2, "decode_responses": False, "health_check_interval": 0}


def _insist(pool: Any, seconds: float) -> None:
    """A URL may say such things too, and wins."""
    pool.connection_kwargs.update(_ours(seconds))
    if isinstance(pool, BlockingConnectionPool):
        pool.timeout = seconds
