"""A listener with a thread of its own, which connects, watches, and connects again."""

import random
import threading
from logging import getLogger

from django_jobchains.notifications.subscribing import Listener, Subscribers
from django_jobchains.texts import log_text

logger = getLogger("django_jobchains")

FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 10.0
CLOSE_SECONDS = 0.5


class ListeningThread(Listener):
    """Runs ``watch`` again and again: a subclass connects there, calls ``connected`` and passes hints until closed.

    Where each kind of hint is subscribed to by itself, it sets ``kinds`` to those that are, and follows
    ``subscribers.kinds``.
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
        """Subscribed: from now on hints arrive, and what was committed before is looked for."""
        self._failures = 0
        self._connected.set()
        self.subscribers.look(self.kinds)

    @property
    def is_alive(self) -> bool:
        return self._connected.is_set() and self._thread.is_alive()

    def wait_until_connected(self, seconds: float) -> bool:
        return self._connected.wait(seconds)

    def seconds_after(self, error: BaseException) -> float | None:
        """How long to wait after this error; None: as long as after any other."""
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
            except BaseException as error:  # a thread that dies silently is the worst of failures
                self._report(error)
                seconds = self.seconds_after(error)
            finally:
                self._connected.clear()
            self.closing.wait(self._pause() if seconds is None else seconds)

    def _report(self, error: BaseException) -> None:
        if not self.closing.is_set():
            self._failures += 1
            text = log_text(error)
            logger.warning("Listening for wake-ups failed (%d in a row), polling meanwhile: %s", self._failures, text)

    def _pause(self) -> float:
        wait = min(FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 10), LAST_RETRY_SECONDS)
        return wait * random.uniform(0.5, 1)  # noqa: S311 - jitter
