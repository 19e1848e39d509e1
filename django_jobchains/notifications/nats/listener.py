"""Receives hints over NATS, and passes them on in its own thread, so that callbacks do not delay the connection."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from django_jobchains.notifications.hints import Hint, HintKind, decode
from django_jobchains.notifications.listening_thread import CLOSE_SECONDS
from django_jobchains.notifications.subscriptions import Listener, Subscribers

#: Hints that wait to be passed on. If there are more, subscribers resync instead.
MAX_WAITING = 1_000
#: What the driver may hold during a flood. The rest is dropped.
MAX_MESSAGES, MAX_BYTES = 4_096, 1_024 * 1_024


class NatsListener(Listener):
    """A listener. The connection's thread calls ``subscribe``, ``confirm`` and ``lost``."""

    kinds = frozenset()

    def __init__(
        self,
        name: str,
        subjects: Mapping[HintKind, str],
        subscribers: Subscribers,
        on_closed: Callable[[], None],
    ) -> None:
        self.is_closed = False
        self._subjects = subjects
        self._kinds = {subject: kind for kind, subject in subjects.items()}
        self._subscribers = subscribers
        self._on_closed = on_closed
        self._client: Client | None = None
        self._unconfirmed: dict[HintKind, Subscription] = {}
        self._subscribed: dict[HintKind, Subscription] = {}
        self._changed = threading.Condition()
        self._waiting: deque[Hint] = deque()
        self._missed: frozenset[HintKind] = frozenset()
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return bool(self._subscribed) and self._thread.is_alive()

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify()
        self._on_closed()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    async def subscribe(self, client: Client) -> bool:
        """Subscribe to the kinds that subscribers want now. Return True if there are new ones to ``confirm``."""
        if client is not self._client:
            self._client, self._subscribed, self.kinds = client, {}, frozenset()
        wanted = frozenset[HintKind]() if self.is_closed else self._subscribers.kinds
        for kind in self._subscribed.keys() - wanted:
            await self._subscribed.pop(kind).unsubscribe()
        self.kinds &= wanted
        new = sorted(wanted - self._subscribed.keys())
        self._unconfirmed = {kind: await self._subscribe(client, kind) for kind in new}
        return bool(new)

    def confirm(self) -> None:
        """Mark the subscriptions as confirmed: the server has processed them, so hints arrive from now on."""
        new, self._unconfirmed = self._unconfirmed, {}
        self._subscribed.update(new)
        self.kinds = frozenset(self._subscribed)
        self.resync(new)

    def lost(self, client: Client) -> None:
        """Forget the subscriptions, which ended with the connection."""
        if client is self._client:
            self._subscribed = {}
            self.kinds = frozenset()

    def resync(self, kinds: Collection[HintKind]) -> None:
        """Let subscribers query, because hints of these kinds may have been missed."""
        with self._changed:
            self._missed |= frozenset(kinds)
            self._changed.notify()

    async def _subscribe(self, client: Client, kind: HintKind) -> Subscription:
        return await client.subscribe(
            self._subjects[kind], cb=self._receive, pending_msgs_limit=MAX_MESSAGES, pending_bytes_limit=MAX_BYTES
        )

    async def _receive(self, message: Msg) -> None:
        """Keep the hint of a message. Drop anything else, because any client of the server may publish."""
        if hint := decode(self._kinds[message.subject], message.data):
            with self._changed:
                if len(self._waiting) >= MAX_WAITING:
                    self._missed |= {waiting.kind for waiting in (*self._waiting, hint)}
                    self._waiting.clear()
                else:
                    self._waiting.append(hint)
                self._changed.notify()

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._missed or self.is_closed)
                missed, self._missed = self._missed, frozenset()
                hint = self._waiting.popleft() if self._waiting else None
            if self.is_closed:
                return
            self._subscribers.resync(missed)
            if hint:
                self._subscribers(hint)
