"""The contract of a notifier: publish hints, listen for them, share jobs out among those who hear, close."""

import re
import time
from collections.abc import Callable, Collection
from logging import getLogger

from django_jobchains.conf import get_settings
from django_jobchains.notifications.hints import KINDS, Hint, HintKind
from django_jobchains.notifications.merging import Merger
from django_jobchains.notifications.subscribing import Listener, Subscribers
from django_jobchains.texts import log_text

logger = getLogger("django_jobchains")

#: While sending fails, it is said once in this time.
WARN_SECONDS = 10.0


def default_prefix(using: str) -> str:
    """Return the prefix of channels on a server that knows nothing of databases: each alias has its own."""
    if using == get_settings().DATABASE:
        return "django_jobchains"
    return f"django_jobchains.{re.sub('[^A-Za-z0-9_-]', '_', using)}"


class Notifier:
    """Sends hints between processes. A subclass says how in ``send`` and ``connect``; both may lose any of them.

    ``using``: the alias of the database whose jobs the hints are about. Options of ``JOBCHAINS["NOTIFIER"]`` are
    further keyword arguments. Its methods are called from any thread.
    """

    #: False: whoever waits has to poll.
    carries_hints = True

    def __init__(self, using: str) -> None:
        self.using = using
        self._merger = Merger()
        self._subscribers = Subscribers(self.connect)
        self._warn_at = 0.0
        self._failures = 0

    # What a subclass says

    def send(self, hints: Collection[Hint]) -> None:
        """Hands the hints over, in few and short steps: an enqueue waits for it."""

    def connect(self, subscribers: Subscribers) -> Listener:
        """Starts to listen; one listener serves all who listen in this process.

        It calls ``subscribers(hint)`` for the hints it hears, of ``subscribers.kinds`` at least, which may change
        meanwhile. After each (re)connection it calls ``subscribers.look(kinds)``: subscribe, then look. It does not
        wait until it is connected. ``ListeningThread`` is one to start from.
        """
        return Listener()

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        """The wake budget: how many of the ``hint.count`` jobs of a hint the caller is to look for, at most ``most``.

        All who ask with one ``hint.id`` and ``group`` together get ``hint.count``: workers of one group could each run
        any of these jobs. Asked from the thread that calls ``subscribers``. None: not known, as ever when in doubt;
        the caller looks then. Never raises.
        """
        return None

    def close(self) -> None:
        """Gives back what sending holds; it may be used again. Listeners are closed by whoever listens."""

    def unprotected(self) -> str | None:
        """How the server is open to anybody who reaches it, for the deployment check; None: it is not.

        Of the settings alone: it does not connect.
        """
        return None

    # What callers use

    def publish(self, hints: Collection[Hint]) -> None:
        """Sends the hints this process has not just sent. Never raises: a failed wake-up undoes no finished job."""
        if fresh := self._merger.fresh(hints):
            try:
                self.send(fresh)
            except Exception as error:
                self._warn(error)
            else:
                self._failures = 0

    def listen(self, on_hint: Callable[[Hint], None], kinds: Collection[HintKind] = KINDS) -> Listener:
        """Calls ``on_hint`` for each hint of these kinds, from a thread of the notifier's own, until it is closed.

        Whenever hints may have been missed, and first of all, it is called with one of each kind whose subject is
        ``EVERY``.
        """
        return self._subscribers.add(on_hint, kinds)

    def _warn(self, error: Exception) -> None:
        self._failures += 1
        now = time.monotonic()
        if self._failures == 1 or now >= self._warn_at:
            self._warn_at = now + WARN_SECONDS
            text = "Wake-ups were not sent (%d times in a row); workers find the jobs at their next poll: %s"
            logger.warning(text, self._failures, log_text(error))


class NullNotifier(Notifier):
    """Sends nothing: workers poll."""

    carries_hints = False
