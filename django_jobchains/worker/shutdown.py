"""How a worker stops, step by step and by a deadline, whatever hangs."""

import threading
import time
from collections.abc import Callable, Sequence
from logging import getLogger

from django.db import OperationalError

from django_jobchains.announcing import announce
from django_jobchains.hygiene import close_all
from django_jobchains.store import AttemptKey, Effects, EndedAttempt, HeldLease, Store
from django_jobchains.store.errors import blames_statement
from django_jobchains.texts import log_error
from django_jobchains.worker.loop import leases_of
from django_jobchains.worker.parts import Parts
from django_jobchains.worker.threads import LOCK_SECONDS

logger = getLogger("django_jobchains")

#: Logged when outcomes and jobs are deferred: see docs/decisions/0031-deferred-writes.md.
DEFERRED = (
    "%d outcomes could not be written and %d jobs could not be handed back, because the jobs are locked. They are "
    "stored, and any worker applies them when the locks are released."
)

#: Between looks at whether somebody is in a hurry.
LOOK_SECONDS = 0.1
#: What aborted handlers get beyond the shutdown timeout,
LAST_WORDS_SECONDS = 1.0
#: each of the steps that may wait for the database,
STEP_SECONDS = 0.5
#: and each that comes after one for which it did not answer.
UNANSWERED_SECONDS = 0.1


class Shutdown:
    """``is_hurried``: whether running handlers are not to be waited for."""

    def __init__(self, parts: Parts, store: Store, *, is_hurried: Callable[[], bool]) -> None:
        self._parts = parts
        self._store = store
        self._is_hurried = is_hurried
        self._step_seconds = STEP_SECONDS

    def run(self, timeout: float) -> int:
        """Lets handlers end for ``timeout`` seconds; returns how many attempts had not ended, and were handed back."""
        self._stop_claiming()
        self._drain(time.monotonic() + timeout)
        abandoned = self._finish_writing()
        self._close()
        return abandoned

    def _stop_claiming(self) -> None:
        """A claim that is under way is not waited for: what it brings is handed back."""
        self._parts.threads["claims"].stop()
        self._parts.loop.close()
        for place in self._parts.places:
            self._hand_back(leases_of(place.take_back(waited_seconds=0)))
            place.close()

    def _drain(self, deadline: float) -> None:
        """Waits for running handlers; at the deadline, or in a hurry, they are told to stop."""
        while time.monotonic() < deadline and not self._is_hurried():
            if not self._join_places(min(time.monotonic() + LOOK_SECONDS, deadline)):
                return
        self._parts.leases.abort_all("worker_stopping")
        if names := self._join_places(time.monotonic() + LAST_WORDS_SECONDS):
            logger.warning(self._still_running(), ", ".join(names))

    def _still_running(self) -> str:
        if self._is_hurried():
            return "Still running after a second signal to stop: %s. Their jobs are handed back."
        return "Still running after the shutdown timeout: %s. Raise SHUTDOWN_SECONDS."

    def _join_places(self, deadline: float) -> list[str]:
        return [name for place in self._parts.places for name in place.join(deadline)]

    def _finish_writing(self) -> int:
        """Writes the last outcomes and notes, then hands back the jobs of attempts that did not end."""
        parts, deadline = self._parts, time.monotonic() + self._step_seconds
        parts.notes.hasten()
        while not (parts.completer.is_through and parts.notes.is_through) and time.monotonic() < deadline:
            time.sleep(0.005)
        held = parts.leases.held()  # first: an attempt that ends now is among one of them at least
        ended = parts.completer.unwritten()
        keys = {attempt.key for attempt in ended}
        leases = [lease for lease in held if lease.key not in keys]
        self._hand_back(leases, ended)
        return len(leases)

    def _hand_back(self, leases: list[HeldLease], ended: Sequence[EndedAttempt] = ()) -> None:
        """On a thread of its own: a database that does not answer must not hold up the end.

        ``ended``: attempts that have ended, and whose outcomes could not be written, because of a lock for example.
        """
        if not leases and not ended:
            return
        self._parts.leases.let_go([*leases, *ended])
        arguments = (leases, ended)
        thread = threading.Thread(target=self._write_back, args=arguments, name="jobchains-hand-back", daemon=True)
        thread.start()
        thread.join(self._step_seconds)
        if thread.is_alive():
            self._step_seconds = UNANSWERED_SECONDS
            logger.warning("The database does not answer: jobs are taken back when their leases run out.")

    def _write_back(self, leases: list[HeldLease], ended: Sequence[EndedAttempt]) -> None:
        try:
            locked = self._hand_back_unlocked(leases)
            if ended or locked:
                self._store.defer([*ended, *(EndedAttempt("handed_back", lease) for lease in locked)])
                logger.warning(DEFERRED, len(ended), len(locked))
        except Exception as error:
            text = "Jobs could not be handed back; they are reclaimed when their leases expire: %s"
            log_error(logger, error, text)
        finally:
            close_all()

    def _hand_back_unlocked(self, leases: list[HeldLease]) -> list[HeldLease]:
        """Returns those that a lock, such as that of a handler inside ``complete()``, keeps from being handed back."""
        effects = Effects()
        written: set[AttemptKey] = set()
        try:
            with self._store.waits_at_most(LOCK_SECONDS):
                written = self._store.hand_back(leases, effects)
        except OperationalError as error:
            if not blames_statement(error):
                raise
        announce(self._store.using, effects)
        missing = [lease for lease in leases if lease.key not in written]
        lost = self._store.check(missing).lost
        return [lease for lease in missing if lease.key not in lost]

    def _close(self) -> None:
        parts = self._parts
        for thread in parts.threads.values():
            thread.stop()
        for part in (parts.rounds, parts.keeper, parts.watch):
            part.pause.set()
        parts.completer.wake()
        parts.notes.hasten()
        if parts.listener is not None:
            parts.listener.close()
        deadline = time.monotonic() + self._step_seconds
        for thread in parts.threads.values():
            if not thread.join(deadline):
                logger.warning("%s did not end in time.", thread.name)
        self._hand_back(parts.leases.held())  # of a claim that was through with its last look at whether it may start
        parts.heartbeat.leave(self._step_seconds)
