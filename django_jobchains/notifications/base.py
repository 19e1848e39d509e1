"""The contract of a notifier: publish hints, listen for them, and distribute their jobs among workers."""

import random
import re
import threading
import time
from collections.abc import Callable, Collection
from logging import getLogger

from django_jobchains.conf import get_settings
from django_jobchains.notifications.hints import KINDS, RESYNC_HINTS, Hint, HintKind, HintMerger
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import NotifierConnected, NotifierFailed
from django_jobchains.text.errors import log_error, log_text

logger = getLogger("django_jobchains")

#: A failure that persists is logged once in this time.
WARNING_INTERVAL_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 10.0
CLOSE_SECONDS = 0.5


class Notifier:
    """Sends hints between processes. Subclasses implement ``send`` and ``connect``, which may both lose hints.

    ``using``: the alias of the database whose jobs the hints concern. The options of ``JOBCHAINS["NOTIFIER"]`` are
    further keyword arguments. Methods are called from any thread.
    """

    #: Whether listeners receive hints. If False, callers have to poll.
    carries_hints = True

    def __init__(self, using: str) -> None:
        self.using = using
        self._merger = HintMerger()
        self._subscribers = Subscribers(self.connect)
        self._throttle = WarningThrottle()
        self._failures = 0

    # For subclasses

    def send(self, hints: Collection[Hint]) -> None:
        """Send hints. This must be short, because ``enqueue`` waits for it."""

    def connect(self, subscribers: "Subscribers") -> "Listener":
        """Start a listener, which serves all subscribers of this process.

        The listener calls ``subscribers(hint)`` for the hints it receives, at least for those in
        ``subscribers.kinds``, which may change. After each connection it subscribes first, and then calls
        ``subscribers.resync(kinds)``. This method does not wait for the connection. ``ListeningThread`` is a base class
        for listeners.
        """
        return Listener()

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        """Return how many of the hint's jobs the caller may query for, at most ``limit``: its wake budget.

        All callers with the same ``hint.id`` and ``group`` share ``hint.count`` jobs, because each worker of a group
        could run each of these jobs. Called from the thread that calls ``subscribers``. With None, which means that the
        budget is unknown, the caller queries. Must not raise an exception.
        """
        return None

    def close(self) -> None:
        """Release the resources for sending. The notifier can be used again. Listeners are closed separately."""

    def security_problem(self) -> str | None:
        """Return a sentence for ``check --deploy`` if anyone who can reach the server can use it, or None.

        Reads only the settings, and does not connect.
        """
        return None

    # For callers

    def publish(self, hints: Collection[Hint]) -> None:
        """Send hints, except those that this process has just sent.

        Does not raise an exception, because a failed wake-up must not undo a finished job.
        """
        if fresh := self._merger.fresh(hints):
            try:
                self.send(fresh)
            except Exception as error:
                self._warn(error)
            else:
                if self._failures:
                    self._failures = 0
                    self._throttle.reset()

    def listen(self, on_hint: Callable[[Hint], None], kinds: Collection[HintKind] = KINDS) -> "Listener":
        """Call ``on_hint`` for each hint of these kinds, in a thread of the notifier, until the listener is closed.

        When the listener has connected, and whenever hints may have been missed, ``on_hint`` is called with a hint of
        each kind whose subject is ``EVERY``.
        """
        return self._subscribers.add(on_hint, kinds)

    def _warn(self, error: Exception) -> None:
        self._failures += 1
        if self._throttle.allows():
            text = "Wake-ups were not sent (%d times in a row); workers find the jobs at their next poll: %s"
            logger.warning(text, self._failures, log_text(error))


class NullNotifier(Notifier):
    """A notifier that sends nothing. Workers find jobs by polling."""

    carries_hints = False


class Listener:
    """Receives hints and passes them to subscribers until it is closed."""

    #: The kinds that it receives.
    kinds: frozenset[HintKind] = KINDS

    def close(self) -> None:
        """Stop the callbacks, and release threads and connections within a second or two."""

    @property
    def is_alive(self) -> bool:
        """Whether hints can arrive. If not, the worker is unhealthy, but continues to work."""
        return True


class Subscribers:
    """Passes the hints of a listener to subscribers. The listener may call this object from any thread."""

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
        """The kinds of hints to which there are subscribers."""
        return frozenset[HintKind]().union(*(subscription.kinds for subscription in self._all))

    def resync(self, kinds: Collection[HintKind]) -> None:
        """Make subscribers query the database, because hints of these kinds may have been missed."""
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


class ListeningThread(Listener):
    """A listener with a thread that calls ``watch``, again after each return or error.

    A subclass implements ``watch``: it connects, calls ``connected``, and passes hints to ``subscribers`` until the
    listener is closed. If each kind of hint has its own subscription, it also follows ``subscribers.kinds``, and sets
    ``kinds`` to the current subscriptions.
    """

    def __init__(self, name: str, subscribers: Subscribers) -> None:
        self.subscribers = subscribers
        self.closing = threading.Event()
        self._connected = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def watch(self) -> None:
        raise NotImplementedError

    def connected(self) -> None:
        """Call this when hints arrive. Subscribers then query for everything that was committed before."""
        self._failures = 0
        self._connected.set()
        if observes(NotifierConnected):
            report(NotifierConnected("", type(self).__name__))
        self.subscribers.resync(self.kinds)

    @property
    def is_alive(self) -> bool:
        return self._connected.is_set() and self._thread.is_alive()

    def retry_seconds(self, error: BaseException) -> float | None:
        """Return the seconds to wait after this error, or None for an increasing pause."""
        return None

    def close(self) -> None:
        self.closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self.closing.is_set():
            seconds = None
            try:
                self.watch()
            except BaseException as error:  # the thread must never end silently
                self._report(error)
                seconds = self.retry_seconds(error)
            finally:
                self._connected.clear()
            self.closing.wait(retry_pause(self._failures, MAX_RETRY_SECONDS) if seconds is None else seconds)

    def _report(self, error: BaseException) -> None:
        if not self.closing.is_set():
            self._failures += 1
            text = "Listening for wake-ups failed (%d in a row), polling in the meantime: %s"
            logger.warning(text, self._failures, log_text(error))
            if observes(NotifierFailed):
                report(NotifierFailed("", type(self).__name__, log_text(error), self._failures))


def retry_pause(failures: int, max_seconds: float) -> float:
    """Return the seconds to wait after this number of consecutive failures, with jitter."""
    seconds = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 10), max_seconds)
    return seconds * random.uniform(0.5, 1)  # noqa: S311 - jitter


class WarningThrottle:
    """Allows one warning in ``WARNING_INTERVAL_SECONDS``."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def allows(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + WARNING_INTERVAL_SECONDS
        return True

    def reset(self) -> None:
        self._next_at = 0.0


def default_prefix(using: str) -> str:
    """Return the default prefix of channels on a server that several databases share: each alias has its own."""
    if using == get_settings().DATABASE:
        return "django_jobchains"
    return f"django_jobchains.{re.sub('[^A-Za-z0-9_-]', '_', using)}"
