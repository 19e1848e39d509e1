"""Those in a process who listen by one notifier share its listener: one connection, one thread."""

import threading
from collections.abc import Callable, Collection
from logging import getLogger

from django_jobchains.notifications.hints import KINDS, LOOK, Hint, HintKind
from django_jobchains.texts import log_error

logger = getLogger("django_jobchains")


class Listener:
    """Calls back for each hint until it is closed."""

    #: What it hears.
    kinds: frozenset[HintKind] = KINDS

    def close(self) -> None:
        """Stops the callbacks; frees threads and connections within a second or two."""

    @property
    def is_alive(self) -> bool:
        """Whether hints can arrive; False asks the worker's health to turn red, not its work to stop."""
        return True


class Subscribers:
    """``connect`` starts the listener, which passes hints by calling this, from any thread, until it is closed."""

    def __init__(self, connect: Callable[["Subscribers"], Listener]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._all: tuple[Subscription, ...] = ()
        self._listener: Listener | None = None

    def __call__(self, hint: Hint) -> None:
        for subscription in self._all:
            subscription.tell(hint)

    @property
    def kinds(self) -> frozenset[HintKind]:
        """What somebody wants to hear; it changes while subscribers come and go."""
        return frozenset[HintKind]().union(*(subscription.kinds for subscription in self._all))

    def look(self, kinds: Collection[HintKind]) -> None:
        """Says that any of these kinds may have been missed: after each connection, and for kinds that are new."""
        for subscription in self._all:
            subscription.look(kinds)

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
        # Of the other kinds the listener says so, when it has connected or heard that they are wanted.
        if not is_first and listener.is_alive:
            subscription.look(listener.kinds)
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
    """One of them. An error of its callback is its own."""

    def __init__(self, subscribers: Subscribers, on_hint: Callable[[Hint], None], kinds: Collection[HintKind]) -> None:
        self._subscribers = subscribers
        self._on_hint = on_hint
        self.kinds = frozenset(kinds)

    def tell(self, hint: Hint) -> None:
        if hint.kind in self.kinds:
            try:
                self._on_hint(hint)
            except Exception as error:
                log_error(logger, error, "The callback for the wake-up %s failed: %s", hint)

    def look(self, kinds: Collection[HintKind]) -> None:
        for hint in LOOK:
            if hint.kind in kinds:
                self.tell(hint)

    def close(self) -> None:
        self._subscribers.remove(self)

    @property
    def is_alive(self) -> bool:
        return self._subscribers.is_alive
