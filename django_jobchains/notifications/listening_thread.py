"""A listener with its own thread, which reconnects after errors."""

import random
import threading
from logging import getLogger

from django_jobchains.notifications.subscriptions import Listener, Subscribers
from django_jobchains.telemetry import observes, report
from django_jobchains.telemetry.events import NotifierConnected, NotifierFailed
from django_jobchains.text.errors import log_text

logger = getLogger("django_jobchains")

FIRST_RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 10.0
CLOSE_SECONDS = 0.5


def retry_pause(failures: int, max_seconds: float) -> float:
    """Return the seconds to wait after this number of consecutive failures, with jitter."""
    seconds = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 10), max_seconds)
    return seconds * random.uniform(0.5, 1)  # noqa: S311 - jitter


class ListeningThread(Listener):
    """Calls ``watch`` again and again. A subclass connects there, calls ``connected`` and passes hints until closed.

    If each kind of hint has its own subscription, the subclass sets ``kinds`` to the current subscriptions, and
    follows ``subscribers.kinds``.
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
        """Let subscribers query what was committed before. From now on, hints arrive."""
        self._failures = 0
        self._connected.set()
        if observes(NotifierConnected):
            report(NotifierConnected("", type(self).__name__))
        self.subscribers.resync(self.kinds)

    @property
    def is_alive(self) -> bool:
        return self._connected.is_set() and self._thread.is_alive()

    def retry_seconds(self, error: BaseException) -> float | None:
        """Return the seconds to wait after this error; None: an increasing pause."""
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
