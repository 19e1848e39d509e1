"""The contract of a notifier: publish hints, listen for them, and distribute their jobs among workers."""

import re
import time
from collections.abc import Callable, Collection
from logging import getLogger

from django_jobchains.conf import get_settings
from django_jobchains.notifications.hints import KINDS, Hint, HintKind, HintMerger
from django_jobchains.notifications.subscriptions import Listener, Subscribers
from django_jobchains.text.errors import log_text

logger = getLogger("django_jobchains")

#: A failure that persists is logged once in this time.
WARNING_INTERVAL_SECONDS = 10.0


def default_prefix(using: str) -> str:
    """Return the default prefix of channels on a server that several databases share: each alias has its own."""
    if using == get_settings().DATABASE:
        return "django_jobchains"
    return f"django_jobchains.{re.sub('[^A-Za-z0-9_-]', '_', using)}"


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


class Notifier:
    """Sends hints between processes. A subclass implements ``send`` and ``connect``; both may lose hints.

    ``using``: the alias of the database whose jobs the hints concern. The options of ``JOBCHAINS["NOTIFIER"]`` are
    further keyword arguments. Methods are called from any thread.
    """

    #: False: listeners never receive anything, so callers have to poll.
    carries_hints = True

    def __init__(self, using: str) -> None:
        self.using = using
        self._merger = HintMerger()
        self._subscribers = Subscribers(self.connect)
        self._throttle = WarningThrottle()
        self._failures = 0

    # For subclasses

    def send(self, hints: Collection[Hint]) -> None:
        """Send hints, in few and short steps: an enqueue waits for it."""

    def connect(self, subscribers: Subscribers) -> Listener:
        """Start to listen. One listener serves all subscribers of this process.

        The listener calls ``subscribers(hint)`` for the hints it receives, at least for those in
        ``subscribers.kinds``, which may change. After each connection it subscribes first, and then calls
        ``subscribers.resync(kinds)``. This method does not wait for the connection. ``ListeningThread`` is a base class
        for listeners.
        """
        return Listener()

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        """Return how many of the hint's jobs the caller may query for, at most ``limit``: its wake budget.

        All callers with the same ``hint.id`` and ``group`` get ``hint.count`` jobs between them: any worker of a group
        could run any of these jobs. Called from the thread that calls ``subscribers``. None means unknown, so that the
        caller queries. Never raises.
        """
        return None

    def close(self) -> None:
        """Release the resources used for sending. The notifier may be used again. Listeners are closed separately."""

    def security_problem(self) -> str | None:
        """Return how the server is open to anyone who can reach it, for the deployment check, or None.

        Depends on the settings only and does not connect.
        """
        return None

    # For callers

    def publish(self, hints: Collection[Hint]) -> None:
        """Send the hints that this process has not just sent.

        Never raises: a failed wake-up must not undo a finished job.
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

    def listen(self, on_hint: Callable[[Hint], None], kinds: Collection[HintKind] = KINDS) -> Listener:
        """Call ``on_hint`` for each hint of these kinds, from a thread of the notifier, until the listener is closed.

        At first, and whenever hints may have been missed, call it with one hint per kind whose subject is ``EVERY``.
        """
        return self._subscribers.add(on_hint, kinds)

    def _warn(self, error: Exception) -> None:
        self._failures += 1
        if self._throttle.allows():
            text = "Wake-ups were not sent (%d times in a row); workers find the jobs at their next poll: %s"
            logger.warning(text, self._failures, log_text(error))


class NullNotifier(Notifier):
    """Sends nothing: workers poll."""

    carries_hints = False
