"""What a process hears over NATS, passed on by a thread that may wait while the connection goes on."""

import threading
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from django_jobchains.notifications.hints import Hint, HintKind, decode
from django_jobchains.notifications.listening import CLOSE_SECONDS
from django_jobchains.notifications.nats_thread import settle
from django_jobchains.notifications.subscribing import Listener, Subscribers

if TYPE_CHECKING:
    from django_jobchains.notifications.nats_connection import NatsConnection

#: Hints that wait to be passed on. Of more it is said that there are some.
MOST_WAITING = 1_000
#: What the driver may hold of a flood; the rest is dropped.
MOST_MESSAGES, MOST_BYTES = 4_096, 1_024 * 1_024


class NatsListener(Listener):
    """``follow`` and what it calls run in the connection's thread, ``subscribers`` are called in this listener's."""

    kinds = frozenset()

    def __init__(self, connection: "NatsConnection", subscribers: Subscribers, name: str) -> None:
        self._connection = connection
        self._subscribers = subscribers
        self._kind_of: dict[str, HintKind] = {}
        self._client: Client | None = None
        self._subscribed: dict[HintKind, Subscription] = {}
        self._changed = threading.Condition()
        self._waiting: deque[Hint] = deque()
        self._missed: frozenset[HintKind] = frozenset()
        self._is_closed = False
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)
        self._thread.start()
        connection.attach(self)

    @property
    def is_alive(self) -> bool:
        return bool(self._subscribed) and self._thread.is_alive() and self._connection.is_connected

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._connection.detach(self)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    # In the connection's thread

    async def follow(self, client: Client) -> None:
        """Subscribes to what is wanted now, and lets look for what was missed until then."""
        wanted = frozenset[HintKind]() if self._is_closed else self._subscribers.kinds
        if client is not self._client:
            self._client, self._subscribed = client, {}
        known = frozenset(self._subscribed)
        if wanted == known:
            return
        for kind in known - wanted:
            await self._subscribed.pop(kind).unsubscribe()
        subscribed = {kind: await self._subscribe(client, kind) for kind in sorted(wanted - known)}
        await settle(client)  # the server has them now, or has said why not
        self._connection.raise_denied()
        self._subscribed.update(subscribed)
        self.kinds = wanted
        self.look(wanted - known)

    def lost(self, client: Client) -> None:
        """The connection is gone, and all subscriptions with it."""
        if client is self._client:
            self._subscribed = {}
            self.kinds = frozenset()

    def look(self, kinds: Collection[HintKind]) -> None:
        """Of these kinds some may have been missed."""
        with self._changed:
            self._missed |= frozenset(kinds)
            self._changed.notify()

    async def _subscribe(self, client: Client, kind: HintKind) -> Subscription:
        subject = self._connection.subject(kind)
        self._kind_of[subject] = kind
        return await client.subscribe(
            subject, cb=self._hear, pending_msgs_limit=MOST_MESSAGES, pending_bytes_limit=MOST_BYTES
        )

    async def _hear(self, message: Msg) -> None:
        """Anybody with a way to the server may publish: what is no hint of ours is dropped."""
        if hint := decode(self._kind_of[message.subject], message.data):
            with self._changed:
                if len(self._waiting) >= MOST_WAITING:
                    self._missed |= {waiting.kind for waiting in (*self._waiting, hint)}
                    self._waiting.clear()
                else:
                    self._waiting.append(hint)
                self._changed.notify()

    # In its own thread

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._missed or self._is_closed)
                missed, self._missed = self._missed, frozenset()
                hint = self._waiting.popleft() if self._waiting else None
            if self._is_closed:
                return
            self._subscribers.look(missed)
            if hint:
                self._subscribers(hint)
