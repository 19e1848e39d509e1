"""``run.complete()``, the transaction of an attempt at a record. It works as for a job, on the record's own table."""

from collections.abc import Callable
from logging import getLogger
from typing import Any, NamedTuple, NoReturn, TypeVar

from django_jobchains.attempts.async_phases import AsyncPhases, TransactionThreads
from django_jobchains.attempts.outcome import raising_phase_conflict
from django_jobchains.attempts.phases import AttemptPhases
from django_jobchains.exceptions import PhaseError, TransactionEnded
from django_jobchains.handlers.abort_signal import AbortSignal, refuse_on_event_loop
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.policies import Lease
from django_jobchains.records.declarations import RecordType
from django_jobchains.records.errors import RecordLost
from django_jobchains.store import RecordEnd, RecordKey, Store
from django_jobchains.store.records import lost_reason
from django_jobchains.text.errors import log_error

logger = getLogger("django_jobchains")

ResultT = TypeVar("ResultT")


class _Identified(NamedTuple):
    """A record where ``AttemptPhases`` expects a job and its processor."""

    id: Any
    type_name: str
    middleware: tuple[Middleware, ...]


class RecordPhases(AttemptPhases):
    def __init__(self, kind: RecordType, key: RecordKey, store: Store, signal: AbortSignal) -> None:
        record: Any = _Identified(key[0], kind.name, kind.middleware)
        super().__init__(record, record, Lease(kind.stalled_seconds), store, None, signal)  # type: ignore[arg-type]
        self._table = kind.table(store.using)
        self._key = key

    def lock(self, *, skips: bool = False) -> None:
        found = self.store.records.lock(self._table, self._key[0], self.transaction, skips=skips)
        if not self.signal.lock_row():
            raise RecordLost(self._key[0], self.signal.reason or "error")
        if reason := lost_reason(found, self._key[1]):
            raise RecordLost(self._key[0], reason)

    def finish_record(self, end: RecordEnd) -> str:
        """Write the end of the attempt in the open transaction, and commit it. Return the record's new state.

        Raises ``RecordLost`` if the record no longer belongs to this attempt.
        """
        state = ""
        try:
            state = self._write_record(end)
            self.commit()
        except (RecordLost, TransactionEnded):
            raise
        except Exception as error:
            # The reply to the commit may be lost, or an on_commit hook may have failed. The row shows which.
            self.roll_back(error)
            if self.store.records.state_of(self._table, end.id) != (state, end.lease_number):
                with raising_phase_conflict():
                    raise
            text = "Record %s is %s. An error after the commit does not change that: %s"
            log_error(logger, error, text, end.id, state)
        return state

    def _write_record(self, end: RecordEnd) -> str:
        states = self.store.records.end(self._table, [end], transaction=self.transaction)
        if end.key not in states:
            raise RecordLost(end.id, "taken_by_another_worker")
        return states[end.key]

    def write_logs(self, logs: Callable[[], list[dict[str, Any]]]) -> None:
        """Store the execution logs of the attempt, which ``logs`` returns. Raises ``RecordLost``."""
        if not self.store.records.write_logs(self._table, self._key, logs):
            found = self.store.records.state_of(self._table, self._key[0])
            raise RecordLost(self._key[0], lost_reason(found, self._key[1]) or "taken_by_another_worker")

    def acomplete(self, function: Any) -> NoReturn:
        raise PhaseError("run.acomplete() is for 'async def' handlers: use 'with run.complete():'.")

    async def acall(self, function: Callable[[], ResultT]) -> ResultT:
        raise PhaseError("run.aadd_log() and entry.aupdate() are for 'async def' handlers: leave out the first 'a'.")


class AsyncRecordPhases(AsyncPhases):
    """The phases of an async record handler."""

    def __init__(self, phases: RecordPhases, threads: TransactionThreads) -> None:
        super().__init__(phases, threads)
        self._write_logs = phases.write_logs

    def complete(self) -> NoReturn:
        raise PhaseError("In an 'async def' handler use 'await run.acomplete(function)' for run.complete().")

    def write_logs(self, logs: Callable[[], list[dict[str, Any]]]) -> None:
        refuse_on_event_loop(
            "Execution logs would be written on", "'await run.aadd_log(…)' or 'await entry.aupdate(…)'"
        )
        self._write_logs(logs)

    async def acall(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function on the thread with the attempt's transaction, or on one with its own connections."""
        return await self._call(function)
