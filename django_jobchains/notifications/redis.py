"""Wake-ups over Redis: hints by PUBLISH, and wake budgets by a script. If Redis loses any, jobs only start later."""

import time
from collections.abc import Collection
from typing import Any

from django_jobchains.notifications.base import Notifier, WarningThrottle, default_prefix, logger
from django_jobchains.notifications.circuit_breaker import CircuitBreaker
from django_jobchains.notifications.hints import EVERY, KINDS, Hint, HintKind, decode, encode
from django_jobchains.notifications.listening_thread import ListeningThread
from django_jobchains.notifications.redis_connections import OUTAGES, CacheEntry, Connections
from django_jobchains.notifications.subscriptions import Listener, Subscribers
from django_jobchains.text.errors import log_text

#: If one transaction has more subjects, one hint for ``EVERY`` subject is sent instead.
MAX_HINTS = 50
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
        self, using: str, cache: str = "default", prefix: str | None = None, timeout_seconds: float = 0.2
    ) -> None:
        super().__init__(using)
        prefix = default_prefix(using) if prefix is None else prefix
        self.entry = CacheEntry(cache)
        self.channels: dict[HintKind, str] = {kind: f"{prefix}.{kind}" for kind in KINDS}
        self._prefix = prefix
        self._connections = Connections(self.entry, timeout_seconds)
        self._breaker = CircuitBreaker(*OUTAGES)
        self._budget_throttle = WarningThrottle()

    def send(self, hints: Collection[Hint]) -> None:
        if len(hints) > MAX_HINTS:
            hints = {Hint(hint.kind, EVERY) for hint in hints}
        with self._breaker.attempt(), self._connections.client() as client:
            pipeline = client.pipeline(transaction=False)
            for hint in hints:
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
        self._entry = notifier.entry
        self._channels = notifier.channels
        self._kinds = {channel: kind for kind, channel in notifier.channels.items()}
        #: Redis confirms each subscription later; then its kind is in ``kinds``.
        self._requested: frozenset[HintKind] = frozenset()
        super().__init__(f"jobchains-listener-{notifier.using}", subscribers)

    def watch(self) -> None:
        self.kinds = self._requested = frozenset()
        connections = Connections(self._entry, LISTEN_SECONDS)
        try:
            with connections.connection() as connection:
                self._subscribe(connection)
                self._receive(connection)
        finally:
            connections.close()

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
            self._confirm(kind)
        elif event == b"message" and (hint := decode(kind, value)):
            self.subscribers(hint)

    def _confirm(self, kind: HintKind) -> None:
        self.kinds |= {kind} & self._requested
        if self.is_alive:
            self.subscribers.resync({kind})
        elif self.kinds == self._requested:
            self.connected()
