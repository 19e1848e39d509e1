"""``--processes``: keeps worker processes running, replaces them one by one, and leaves none behind."""

import math
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import (
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    ProcessStarted,
    SupervisorGaveUp,
)
from django_jobchains.worker.children import Child
from django_jobchains.worker.health import Health, health_of_processes
from django_jobchains.worker.restarts import MOST_FAILED_STARTS, Restarts, failed_to_start
from django_jobchains.worker.sources import Sources
from django_jobchains.worker.stop_request import StopRequest
from django_jobchains.worker.tether import LAST_SECONDS

#: Between looks at signals, and at what ended.
LOOK_SECONDS = 0.1
#: What a process that takes another's place may need until it has begun.
START_SECONDS = 60.0
#: After one that did not, before the next is tried.
HANDOVER_WAIT_SECONDS = 30.0
#: Between looks at the source files.
RELOAD_SECONDS = 0.5
#: A supervisor that did not look at its workers for so long is not live.
SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Handover:
    """The old process goes on until the new one has begun."""

    old: Child
    new: Child
    #: Whether the old one may finish what it runs, however long that takes; else it has the shutdown timeout.
    retires: bool


class Supervisor:
    """Runs ``count`` worker processes until a signal, or, with ``burst``, until each found nothing due.

    ``reload``: a change of the project's Python files restarts them.
    """

    def __init__(
        self, count: int, *, name: str, shutdown_seconds: float, burst: bool = False, reload: bool = False
    ) -> None:
        self.id = f"{name}:{os.getpid()}:supervisor"
        self.failed = False
        self._grace_seconds = shutdown_seconds + LAST_SECONDS
        self._burst = burst
        self._sources = Sources() if reload else None
        #: The process of each number, but for those that are to be started at a time.
        self._working: dict[int, Child] = {}
        self._due_at = dict.fromkeys(range(1, count + 1), 0.0)
        #: Those that were replaced, or told to end.
        self._leaving: list[Child] = []
        self._handover: Handover | None = None
        self._next_handover_at = 0.0
        #: By the rolling restart at hand.
        self._to_replace: list[Child] = []
        self._restarts = Restarts()
        self.stop_request = StopRequest()
        self._is_hung_up = False
        self._looked_at = time.monotonic()
        self._reload_at = 0.0

    def run(self) -> int:
        """Returns the exit code: 1 when no process could be started, or one did not end well when it was told to."""
        with self._handled_signals():
            try:
                while not self._is_over():
                    self._step()
            finally:
                self._stop()
        return int(self.failed)

    def request_stop(self) -> None:
        """From any thread: as the first SIGTERM does."""
        self.stop_request.make()

    def health(self) -> Health:
        """From any thread."""
        is_stopping = self.stop_request.is_made or self.failed
        is_stuck = time.monotonic() - self._looked_at > SILENT_SECONDS
        processes = {**dict.fromkeys(self._due_at.copy()), **self._working.copy()}
        return health_of_processes(self.id, processes, is_stopping=is_stopping, is_stuck=is_stuck)

    def _is_over(self) -> bool:
        return self.stop_request.is_made or self.failed or not (self._working or self._due_at or self._leaving)

    def _step(self) -> None:
        self._listen()
        self._bury()
        self._start_due()
        if self._is_hung_up:
            self._hung_up()
        if self._sources and time.monotonic() >= self._reload_at:
            self._reload(self._sources)
        self._hand_over()

    # Processes that start and end

    def _children(self) -> list[Child]:
        new = [self._handover.new] if self._handover else []
        return [*self._working.values(), *self._leaving, *new]

    def _listen(self) -> None:
        self._looked_at = time.monotonic()
        lines = {child.line: child for child in self._children() if child.is_heard}
        for line in select.select(list(lines), [], [], LOOK_SECONDS)[0]:
            lines[line].listen()

    def _start_due(self) -> None:
        for number, due_at in list(self._due_at.items()):
            if time.monotonic() >= due_at:
                self._start(number)

    def _start(self, number: int) -> None:
        try:
            child = self._spawn(number, "")
        except OSError as error:  # no memory, or too many processes
            wait = self._restarts.ended(number, lived_seconds=0, failed_to_start=True)
            self._due_at[number] = time.monotonic() + wait
            report(ProcessNotStarted(self.id, number, str(error), wait))
            self._give_up_if_none_starts()
        else:
            self._working[number] = child
            del self._due_at[number]

    def _spawn(self, number: int, reason: str) -> Child:
        child = Child(number)
        report(ProcessStarted(self.id, number, child.pid, reason))
        return child

    def _bury(self) -> None:
        for child in self._children():
            if (code := child.code) is not None:
                child.listen()
                child.close()
                self._ended(child, code)
            elif child in self._leaving:
                child.kill_overdue()

    def _ended(self, child: Child, code: int) -> None:
        handover = self._handover
        if handover and child is handover.new:
            self._call_off(f"it ended with {code}")
        elif handover and child is handover.old:
            self._working[child.number], self._handover = handover.new, None
            self._report_end(child, code, None)
        elif child in self._leaving:
            self._leaving.remove(child)
            self._report_end(child, code, None)
        else:
            del self._working[child.number]
            self._start_again(child, code)

    def _start_again(self, child: Child, code: int) -> None:
        if self._burst and code == 0:
            self._report_end(child, code, None)
            return
        failed = failed_to_start(code, has_begun=child.has_begun)
        if failed and self._sources:  # the next change will mend it
            self._due_at[child.number] = math.inf
            self._report_end(child, code, None)
            return
        wait = self._restarts.ended(child.number, lived_seconds=child.age_seconds, failed_to_start=failed)
        self._due_at[child.number] = time.monotonic() + wait
        self._report_end(child, code, wait)
        self._give_up_if_none_starts()

    def _report_end(self, child: Child, code: int, restart_seconds: float | None) -> None:
        report(ProcessEnded(self.id, child.number, child.pid, code, restart_seconds))

    def _give_up_if_none_starts(self) -> None:
        if self._restarts.has_none_that_starts({*self._working, *self._due_at}):
            self.failed = True
            reason = f"no worker process could start, {MOST_FAILED_STARTS} times in a row; what they wrote says why"
            report(SupervisorGaveUp(self.id, reason))

    # Replacing them, one at a time

    def _hand_over(self) -> None:
        if (handover := self._handover) is None:
            self._begin_handover()
        elif handover.new.has_begun:
            self._working[handover.old.number], self._handover = handover.new, None
            self._leave(handover.old, retires=handover.retires)
        elif handover.new.age_seconds > START_SECONDS:
            self._leave(handover.new)
            self._call_off(f"it did not reach the database in {START_SECONDS:.0f} s")

    def _begin_handover(self) -> None:
        if time.monotonic() < self._next_handover_at:
            return
        if (old := self._next_to_replace()) is None:
            return
        is_asked = old in self._to_replace
        try:
            new = self._spawn(old.number, "rolling restart" if is_asked else old.wish)
        except OSError as error:
            self._put_off(old.number, str(error))
        else:
            self._handover = Handover(old, new, retires=not is_asked)

    def _next_to_replace(self) -> Child | None:
        working = self._working.values()
        self._to_replace = [child for child in self._to_replace if child in working]
        # One that ran long handlers when it was replaced may still do: there are never three of a number.
        leaving = {child.number for child in self._leaving}
        wishing = [child for child in working if child.wish and child.number not in leaving]
        return next(iter([*self._to_replace, *wishing]), None)

    def _leave(self, child: Child, *, retires: bool = False) -> None:
        if retires:
            child.retire()
        else:
            child.terminate(self._grace_seconds)
        self._leaving.append(child)

    def _call_off(self, reason: str) -> None:
        if self._handover:
            number, self._handover = self._handover.old.number, None
            self._put_off(number, reason)

    def _put_off(self, number: int, reason: str) -> None:
        """What does not work must not take the place of what does."""
        self._to_replace.clear()
        self._next_handover_at = time.monotonic() + HANDOVER_WAIT_SECONDS
        report(ProcessNotReplaced(self.id, number, reason))

    def _reload(self, sources: Sources) -> None:
        """All at once, without waiting for the new code to work: it is being written."""
        self._reload_at = time.monotonic() + RELOAD_SECONDS
        if not sources.have_changed():
            return
        for child in self._children():
            if child not in self._leaving:
                self._leave(child)
        self._due_at = dict.fromkeys(sorted({*self._working, *self._due_at}), 0.0)
        self._working, self._handover = {}, None
        self._restarts.forget()

    # Stopping

    def _stop(self) -> None:
        """Ends every process: by SIGTERM, at once when there was a second signal, at last by SIGKILL."""
        self._await_copies()
        children = self._children()
        for child in children:
            child.terminate(self._grace_seconds)
        has_hurried = False
        while running := [child for child in children if child.code is None]:
            if self.stop_request.is_urgent and not has_hurried:
                has_hurried = True
                for child in running:
                    child.hurry(LAST_SECONDS)
            for child in running:
                child.kill_overdue()
            self._listen()
        for child in children:
            child.close()
            self._report_end(child, child.code or 0, None)
        self.failed |= not all(child.has_ended_well for child in children)

    def _await_copies(self) -> None:
        """Wait until another signal is a second one. The workers are told to stop, and log "Stopping", after that."""
        while self.stop_request.expects_copies and any(child.code is None for child in self._children()):
            self._listen()

    @contextmanager
    def _handled_signals(self) -> Iterator[None]:
        stop = self.stop_request.on_signal
        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: self._on_hang_up}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
            del handlers[signal.SIGHUP]
        self._had_terminal = _has_terminal()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler_before in before.items():
                signal.signal(number, handler_before)

    def _on_hang_up(self, number: int, frame: FrameType | None) -> None:
        self._is_hung_up = True  # nothing else: a handler may run in the middle of anything

    def _hung_up(self) -> None:
        """SIGHUP: a rolling restart. Sent because the terminal was closed, it is the end, as for any command."""
        self._is_hung_up = False
        if self._had_terminal and not _has_terminal():
            self.stop_request.make()
        else:
            self._to_replace = list(self._working.values())


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
