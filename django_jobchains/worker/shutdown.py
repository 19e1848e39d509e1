"""How a worker stops: step by step, with a deadline for each step."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from logging import getLogger

from django_jobchains.store import Store
from django_jobchains.store.errors import is_database_away
from django_jobchains.store.rows import AttemptKey, EndedAttempt
from django_jobchains.text.errors import log_error
from django_jobchains.worker.claim_loop import hand_back_unlocked, keys_of
from django_jobchains.worker.components import Components
from django_jobchains.worker.end_writer import ended_attempts
from django_jobchains.worker.threads import OwnedThread, StopRequest, returns_within

logger = getLogger("django_jobchains")

#: Logged when outcomes and jobs are deferred: see docs/decisions/0031-deferred-writes.md.
DEFERRED = (
    "The ends of %d attempts could not be written, for example because their jobs are locked. They are stored, and any "
    "worker applies them when this is possible."
)

#: How often the stop request is checked for urgency.
CHECK_SECONDS = 0.1
#: How long aborted handlers may take to end.
ABORT_GRACE_SECONDS = 1.0
#: The limit of each step that waits for the database.
STEP_SECONDS = 0.5
#: The limit after a step in which the database did not respond.
STEP_AFTER_SILENCE_SECONDS = 0.1


class Shutdown:
    """Stops the components of a worker. An urgent request does not wait for running handlers."""

    def __init__(self, components: Components, store: Store, request: StopRequest) -> None:
        self._components = components
        self._store = store
        self._request = request
        self._step_seconds = STEP_SECONDS

    def run(self, timeout: float) -> int:
        """Wait up to ``timeout`` seconds for handlers. Returns how many attempts had not ended."""
        deadline = time.monotonic() + timeout
        self._stop_claiming()
        self._drain(deadline)
        self._hand_back_waiting()
        abandoned = self._finish_writing()
        self._call_observers(deadline)
        self._close()
        return abandoned

    def _stop_claiming(self) -> None:
        """Stop the claim loop without waiting for it. It returns jobs of a claim in progress to the queue."""
        self._components.threads["claim-loop"].stop()
        self._components.claim_loop.close()
        self._hand_back_waiting()
        for pool in self._components.pools:
            pool.close()

    def _hand_back_waiting(self) -> None:
        """Return jobs that wait for a slot to the queue.

        A claim in progress, or the end of a run in a child process, may add some after the pools were closed.
        """
        for pool in self._components.pools:
            waiting = pool.take_back(waited_seconds=0)
            self._components.records.hand_back(waiting)
            self._hand_back(keys_of(waiting), has_begun=False)

    def _drain(self, deadline: float) -> None:
        """Wait for running handlers, and abort them at the deadline or when the request becomes urgent."""
        while time.monotonic() < deadline and not self._request.is_urgent:
            if not self._join_pools(min(time.monotonic() + CHECK_SECONDS, deadline)):
                return
            self._hand_back_waiting()
        for held in self._components.context.held:
            held.abort_all("worker_stopping")
        if self._join_pools(time.monotonic() + ABORT_GRACE_SECONDS):
            self._kill_children()
        if names := self._join_pools(time.monotonic()):
            text = "Still running after the shutdown timeout: %s. Raise SHUTDOWN_SECONDS."
            if self._request.is_urgent:
                text = "Still running after a second signal to stop: %s. Their jobs are returned to the queue."
            logger.warning(text, ", ".join(names))

    def _kill_children(self) -> None:
        """Kill the child processes that run handlers, so that their jobs are returned to the queue."""
        tasks = self._components.slots.child_tasks()
        for task in tasks:
            task.kill()
        if tasks:
            self._join_pools(time.monotonic() + self._step_seconds)

    def _join_pools(self, deadline: float) -> list[str]:
        return [name for pool in self._components.pools for name in pool.join(deadline)]

    def _finish_writing(self) -> int:
        """Write the last outcomes and log lines, then return the jobs of attempts that did not end to the queue."""
        outcome_writer, log_writer = self._components.outcome_writer, self._components.log_writer
        log_writer.flush()
        deadline = time.monotonic() + self._step_seconds
        while not (outcome_writer.is_drained and log_writer.is_drained) and time.monotonic() < deadline:
            time.sleep(0.005)
        # First, so that an attempt that ends now is in at least one of the lists.
        held = self._components.context.leases.held()
        pending = outcome_writer.pending()
        ended = {outcome.job.key for outcome in pending}
        keys = [key for key in held if key not in ended]
        self._hand_back(keys, ended_attempts(pending))
        return len(keys) + self._components.records.finish(self._step_seconds)

    def _call_observers(self, deadline: float) -> None:
        """Let the observers of attempts finish, until the deadline at most."""
        observers = self._components.context.observers
        if not observers.drain(max(deadline, time.monotonic() + self._step_seconds)):
            logger.warning("The worker stops before the signals of all ended tasks could be sent.")

    def _hand_back(self, keys: list[AttemptKey], ended: Sequence[EndedAttempt] = (), *, has_begun: bool = True) -> None:
        """Hand jobs back, and store ends. ``has_begun``: whether the handlers of ``keys`` may have been called.

        ``ended``: attempts that have ended and whose outcomes could not be written, for example because of a lock.
        """
        if not keys and not ended:
            return
        self._components.context.leases.release([*keys, *(attempt.key for attempt in ended)])
        if not returns_within(self._step_seconds, partial(self._write_back, keys, ended, has_begun), "hand-back"):
            self._step_seconds = STEP_AFTER_SILENCE_SECONDS
            logger.warning("The database does not answer. Jobs are reclaimed when their leases expire.")

    def _write_back(self, keys: list[AttemptKey], ended: Sequence[EndedAttempt], has_begun: bool) -> None:
        try:
            locked = hand_back_unlocked(self._store, keys, has_begun=has_begun)
            left = [*ended, *(EndedAttempt("handed_back", key, has_begun=has_begun) for key in locked)]
            if left and (stored := self._defer(left)):
                logger.warning(DEFERRED, stored)
        except Exception as error:
            text = "Jobs could not be returned to the queue; they are reclaimed when their leases expire: %s"
            log_error(logger, error, text)

    def _defer(self, ended: Sequence[EndedAttempt]) -> int:
        """Store how attempts ended, and return how many were stored.

        An end that cannot be stored, for example encoded, does not affect the others.
        """
        try:
            self._store.deferred.defer(ended)
        except Exception as error:
            if is_database_away(error):
                raise
            if len(ended) == 1:
                text = "The outcome of job %s could not be stored; the job is reclaimed when its lease expires: %s"
                log_error(logger, error, text, ended[0].key[0])
                return 0
            return sum(self._defer([attempt]) for attempt in ended)
        return len(ended)

    def _cancel_claim(self, thread: OwnedThread) -> None:
        """Cancel a claim that is still running: if the server finished it later, its jobs would count as crashed."""
        deadline = time.monotonic() + self._step_seconds
        # On another thread, because an unresponsive server would delay the shutdown.
        cancel = threading.Thread(target=self._cancel, args=(thread,), name="jobchains-cancel-claim", daemon=True)
        cancel.start()
        thread.join(deadline)

    def _cancel(self, thread: OwnedThread) -> None:
        try:
            if thread.connection is not None:
                self._store.db.cancel(thread.connection)
        except Exception as error:
            log_error(logger, error, "A claim could not be cancelled: %s")

    def _close(self) -> None:
        components = self._components
        for thread in components.threads.values():
            thread.stop()
        periodic = (components.maintenance, components.scheduling, components.finding or components.scheduling)
        for component in (*periodic, components.renewal, components.stuck_attempts):
            component.pause.set()
        components.context.observers.interrupt()
        components.outcome_writer.interrupt()
        components.records.close()
        components.log_writer.flush()
        if components.listener is not None:
            components.listener.close()
        for child_slots in components.child_slots.values():
            child_slots.pool.terminate()
        deadline = time.monotonic() + self._step_seconds
        if not components.threads["claim-loop"].join(deadline):
            self._cancel_claim(components.threads["claim-loop"])
        for thread in components.threads.values():
            if not thread.join(deadline):
                logger.warning("%s did not end in time.", thread.name)
        # The jobs of a claim that ended while the claim loop was being closed, or that the loop could not hand back.
        keys = {*components.context.leases.held(), *components.claim_loop.unwanted}
        self._hand_back(list(keys), has_begun=False)
        components.records.finish(self._step_seconds)
        components.heartbeat.leave(self._step_seconds)
