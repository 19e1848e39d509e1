"""Subscribers of one notifier in a process. They share one listener: one connection and one thread."""

import threading
from collections.abc import Callable, Collection
from logging import getLogger

from django_jobchains.notifications.hints import KINDS, RESYNC_HINTS, Hint, HintKind
from django_jobchains.text.errors import log_error

logger = getLogger("django_jobchains")


class Listener:
    """Passes on hints until it is closed."""

    #: The kinds that it receives.
    kinds: frozenset[HintKind] = KINDS

    def close(self) -> None:
        """Stop the callbacks, and release threads and connections within a second or two."""

    @property
    def is_alive(self) -> bool:
        """Whether hints can arrive. If not, the worker is unhealthy, but continues to work."""
        return True


class Subscribers:
    """Passes hints to subscribers. ``connect`` starts the listener, which calls this object from any thread."""

    def __init__(self, connect: Callable[["Subscribers"], Listener]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._all: tuple[Subscription, ...] = ()
        self._listener: Listener | None = None

    def __call__(self, hint: Hint) -> None:
        for subscription in self._all:
            subscription.notify(hint)

    @property
    def kinds(self) -> frozenset[HintKind]:
        """The kinds that subscribers want now."""
        return frozenset[HintKind]().union(*(subscription.kinds for subscription in self._all))

    def resync(self, kinds: Collection[HintKind]) -> None:
        """Let subscribers query, because hints of these kinds may have been missed."""
        for subscription in self._all:
            subscription.resync(kinds)

    def add(self, on_hint: Callable[[Hint], None], kinds: Collection[HintKind]) -> Listener:
        subscription = Subscription(self, on_hint, kinds)
        with self._lock:
            before, self._all = self._all, (*self._all, subscription)
            is_first = self._listener is None
            try:
                listener = self._listener = self._listener or self._connect(self)
            except BaseException:
                self._all = before
                raise
        # The listener resyncs kinds that it does not receive yet when it has subscribed to them.
        if not is_first and listener.is_alive:
            subscription.resync(listener.kinds)
        return subscription

    def remove(self, subscription: "Subscription") -> None:
        with self._lock:
            self._all = tuple(other for other in self._all if other is not subscription)
            listener = None
            if not self._all:
                listener, self._listener = self._listener, None
        if listener:
            listener.close()

    @property
    def is_alive(self) -> bool:
        listener = self._listener
        return listener is not None and listener.is_alive


class Subscription(Listener):
    """One subscriber. Exceptions in its callback do not affect the others."""

    def __init__(self, subscribers: Subscribers, on_hint: Callable[[Hint], None], kinds: Collection[HintKind]) -> None:
        self._subscribers = subscribers
        self._on_hint = on_hint
        self.kinds = frozenset(kinds)

    def notify(self, hint: Hint) -> None:
        if hint.kind in self.kinds:
            try:
                self._on_hint(hint)
            except Exception as error:
                log_error(logger, error, "The callback for the wake-up %s failed: %s", hint)

    def resync(self, kinds: Collection[HintKind]) -> None:
        for hint in RESYNC_HINTS:
            if hint.kind in kinds:
                self.notify(hint)

    def close(self) -> None:
        self._subscribers.remove(self)

    @property
    def is_alive(self) -> bool:
        return self._subscribers.is_alive
