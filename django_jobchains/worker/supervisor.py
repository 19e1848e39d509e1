"""``--processes``: keeps worker processes running, replaces them one by one, and ends all of them."""

import math
import os
import select
import signal
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import (
    ProcessEnded,
    ProcessNotReplaced,
    ProcessNotStarted,
    ProcessStarted,
    SupervisorGaveUp,
)
from django_jobchains.worker.health import Health
from django_jobchains.worker.supervised_process import (
    EXIT_GRACE_SECONDS,
    MAX_FAILED_STARTS,
    Child,
    Restarts,
    failed_to_start,
)
from django_jobchains.worker.threads import StopRequest

#: How often the supervisor checks for signals, and for processes that ended.
CHECK_SECONDS = 0.1
#: How long a process that replaces another may take to begin.
START_SECONDS = 60.0
#: The wait after a failed replacement.
RETRY_REPLACEMENT_SECONDS = 30.0
#: How often the source files are checked.
RELOAD_SECONDS = 0.5
#: A supervisor that has not checked its processes for longer is not live.
MAX_UNCHECKED_SECONDS = 10.0
#: The longest time between two reports of a process, which reports every second, and until its first report.
MAX_SILENCE_SECONDS, MAX_SILENCE_AT_START_SECONDS = 5.0, 60.0


@dataclass(frozen=True)
class Replacement:
    """A replacement of a process. The old process continues until the new one has begun."""

    old: Child
    new: Child
    #: Whether the old one may finish its attempts, however long they take; otherwise it has the shutdown timeout.
    retires: bool


class Supervisor:
    """Runs ``count`` worker processes until a signal, or, with ``burst``, until no job is due.

    ``reload``: restart them when the project's Python files change. ``on_end`` is called with a process that has ended.
    """

    def __init__(
        self,
        count: int,
        *,
        name: str,
        shutdown_seconds: float,
        burst: bool = False,
        reload: bool = False,
        on_end: Callable[[Child], object] = lambda child: None,
    ) -> None:
        self.id = f"{name}:{os.getpid()}:supervisor"
        self.failed = False
        self._grace_seconds = shutdown_seconds + EXIT_GRACE_SECONDS
        self._burst = burst
        self._on_end = on_end
        self._sources = SourceFiles() if reload else None
        #: The running process of each number. Each of the other numbers has a start time.
        self._working: dict[int, Child] = {}
        self._due_at = dict.fromkeys(range(1, count + 1), 0.0)
        #: Processes that were replaced or stopped, and have not ended.
        self._ending: list[Child] = []
        self._replacement: Replacement | None = None
        self._next_replacement_at = 0.0
        #: The rest of the current rolling restart.
        self._to_replace: list[Child] = []
        self._restarts = Restarts()
        self.stop_request = StopRequest()
        self._is_hung_up = False
        self._checked_at = time.monotonic()
        self._reload_at = 0.0

    def run(self) -> int:
        """Run until the end. Returns the exit code, 1 if no process could start or one did not end well."""
        with self._handled_signals():
            try:
                while not self._is_over():
                    self._step()
            finally:
                self._stop()
        return int(self.failed)

    def request_stop(self) -> None:
        """Stop, as after the first SIGTERM. Can be called from any thread."""
        self.stop_request.make()

    def health(self) -> Health:
        """Return the current health. Can be called from any thread."""
        is_stopping = self.stop_request.is_made or self.failed
        is_stuck = time.monotonic() - self._checked_at > MAX_UNCHECKED_SECONDS
        processes = {**dict.fromkeys(self._due_at.copy()), **self._working.copy()}
        return health_of_processes(self.id, processes, is_stopping=is_stopping, is_stuck=is_stuck)

    def metrics(self) -> list[str]:
        """Return the metrics of the running processes. Can be called from any thread."""
        children = {*self._working.copy().values(), *self._ending.copy()}  # One that is just replaced is in both.
        return [child.metrics for child in children if child.metrics]

    def _is_over(self) -> bool:
        return self.stop_request.is_made or self.failed or not (self._working or self._due_at or self._ending)

    def _step(self) -> None:
        self._receive()
        self._remove_ended()
        for number, due_at in list(self._due_at.items()):
            if time.monotonic() >= due_at and not self.failed:
                self._start(number)
        if self._is_hung_up:
            self._hung_up()
        if self._sources and time.monotonic() >= self._reload_at:
            self._reload(self._sources)
        self._replace()

    # Processes that start and end

    def _children(self) -> list[Child]:
        new = [self._replacement.new] if self._replacement else []
        return [*self._working.values(), *self._ending, *new]

    def _receive(self) -> None:
        self._checked_at = time.monotonic()
        children = {child.socket: child for child in self._children() if child.is_connected}
        for sock in select.select(list(children), [], [], CHECK_SECONDS)[0]:
            children[sock].receive()

    def _start(self, number: int) -> None:
        try:
            child = self._spawn(number, "")
        except OSError as error:  # There is no memory, or there are too many processes.
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

    def _remove_ended(self) -> None:
        for child in self._children():
            if (code := child.code) is not None:
                child.receive()
                child.close()
                self._on_end(child)
                self._ended(child, code)
            elif child in self._ending:
                child.kill_overdue()

    def _ended(self, child: Child, code: int) -> None:
        replacement = self._replacement
        if replacement and child is replacement.new:
            self._cancel_replacement(f"it ended with {code}")
        elif replacement and child is replacement.old:
            self._working[child.number], self._replacement = replacement.new, None
            self._report_end(child, code, None)
        elif child in self._ending:
            self._ending.remove(child)
            self._report_end(child, code, None)
        else:
            del self._working[child.number]
            self._restart(child, code)

    def _restart(self, child: Child, code: int) -> None:
        if self._burst and code == 0:
            self._report_end(child, code, None)
            return
        failed = failed_to_start(code, has_begun=child.has_begun)
        if failed and self._sources:  # A change of the source may fix it.
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
            reason = f"no worker process could start, {MAX_FAILED_STARTS} times in a row; see their output"
            report(SupervisorGaveUp(self.id, reason))

    # Replacing processes, one at a time

    def _replace(self) -> None:
        if (replacement := self._replacement) is None:
            self._begin_replacement()
        elif replacement.new.has_begun:
            self._end(replacement.old, retires=replacement.retires)
            self._working[replacement.old.number], self._replacement = replacement.new, None
        elif replacement.new.age_seconds > START_SECONDS:
            self._end(replacement.new)
            self._cancel_replacement(f"it did not reach the database in {START_SECONDS:.0f} s")

    def _begin_replacement(self) -> None:
        if time.monotonic() < self._next_replacement_at:
            return
        if (old := self._next_to_replace()) is None:
            return
        is_rolling_restart = old in self._to_replace
        try:
            new = self._spawn(old.number, "rolling restart" if is_rolling_restart else old.replace_reason)
        except OSError as error:
            self._delay_replacement(old.number, str(error))
        else:
            self._replacement = Replacement(old, new, retires=not is_rolling_restart)

    def _next_to_replace(self) -> Child | None:
        working = self._working.values()
        self._to_replace = [child for child in self._to_replace if child in working]
        # A replaced process may still run long handlers. There are never three processes with the same number.
        ending = {child.number for child in self._ending}
        asking = [child for child in working if child.replace_reason and child.number not in ending]
        return next(iter([*self._to_replace, *asking]), None)

    def _end(self, child: Child, *, retires: bool = False) -> None:
        if retires:
            child.retire()
        else:
            child.terminate(self._grace_seconds)
        self._ending.append(child)

    def _cancel_replacement(self, reason: str) -> None:
        if self._replacement:
            number, self._replacement = self._replacement.old.number, None
            self._delay_replacement(number, reason)

    def _delay_replacement(self, number: int, reason: str) -> None:
        """End the rolling restart after a failure, to keep the processes that work."""
        self._to_replace.clear()
        self._next_replacement_at = time.monotonic() + RETRY_REPLACEMENT_SECONDS
        report(ProcessNotReplaced(self.id, number, reason))

    def _reload(self, sources: "SourceFiles") -> None:
        """Restart all processes together after a change, without checking first whether the new code works."""
        self._reload_at = time.monotonic() + RELOAD_SECONDS
        if not sources.have_changed():
            return
        for child in self._children():
            if child not in self._ending:
                self._end(child)
        self._due_at = dict.fromkeys(sorted({*self._working, *self._due_at}), 0.0)
        self._working, self._replacement = {}, None
        self._restarts.forget()

    # Stopping

    def _stop(self) -> None:
        """End every process by SIGTERM, without waiting for handlers after a second signal, and finally by SIGKILL."""
        self._await_copies()
        children = self._children()
        for child in children:
            child.terminate(self._grace_seconds)
        is_stopping_now = False
        while running := [child for child in children if child.code is None]:
            if self.stop_request.is_urgent and not is_stopping_now:
                is_stopping_now = True
                for child in running:
                    child.stop_now(EXIT_GRACE_SECONDS)
            for child in running:
                child.kill_overdue()
            self._receive()
        for child in children:
            child.close()
            self._report_end(child, child.code or 0, None)
        self.failed |= not all(child.has_ended_well for child in children)

    def _await_copies(self) -> None:
        """Wait until another signal would not be a copy. Only then are the workers stopped, and log "Stopping"."""
        while self.stop_request.expects_copies and any(child.code is None for child in self._children()):
            self._receive()

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
        self._is_hung_up = True  # Do nothing else: a signal handler may run at any point.

    def _hung_up(self) -> None:
        """Begin a rolling restart after SIGHUP; stop if the signal was sent because the terminal was closed."""
        self._is_hung_up = False
        if self._had_terminal and not _has_terminal():
            self.stop_request.make()
        else:
            self._to_replace = list(self._working.values())


def health_of_processes(
    name: str, processes: Mapping[int, Child | None], *, is_stopping: bool, is_stuck: bool
) -> Health:
    """Return the health of a supervisor: live if every process is live, ready if any is. None: to be restarted."""
    known = [process.health for process in processes.values() if process and process.health]
    broken = ["the supervisor does not check its processes"] if is_stuck else []
    broken += [f"process {number}: {text}" for number, process in processes.items() for text in _broken(process)]
    problems = broken + [
        f"process {number}: {text}"
        for number, process in processes.items()
        if process and not _broken(process)
        for text in (process.health.problems if process.health else ["starting"])
    ]
    if is_stopping:
        broken, problems = [], ["stopping"]
    able = [process for process in processes.values() if process and process.health and process.health.is_ready]
    is_ready = not (is_stopping or is_stuck) and any(not _broken(process) for process in able)
    slots, running = sum(health.slots for health in known), sum(health.running for health in known)
    return Health(name, not broken, is_ready, tuple(problems), slots, running, tuple(known))


def _broken(process: Child | None) -> list[str]:
    """Return why a process is not live."""
    if process is None:
        return ["ended, and will be restarted"]
    limit = MAX_SILENCE_SECONDS if process.health else MAX_SILENCE_AT_START_SECONDS
    if process.silent_seconds > limit:
        return [f"no report for {process.silent_seconds:.0f} s"]
    return list(process.health.problems) if process.health and not process.health.is_live else []


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


#: Folders without code of the project.
_EXCLUDED = {"__pycache__", "node_modules", "site-packages", "dist-packages"}


class SourceFiles:
    """All Python files below those folders of the import path that contain loaded modules of the project.

    ``django.utils.autoreload`` watches the modules loaded by its own process. The supervisor has not loaded code that
    was added since its start, or files that cannot be imported, but must notice when they change.
    """

    def __init__(self) -> None:
        self._roots = _roots()
        self._files = self._read()
        self._is_changing = False

    def have_changed(self) -> bool:
        """Return whether files have changed since the last change. Waits for a call without a change in between,
        because editors save several files."""
        now = self._read()
        differs, self._files = now != self._files, now
        is_complete = self._is_changing and not differs
        self._is_changing = differs
        return is_complete

    def _read(self) -> dict[str, tuple[int, int]]:
        return dict(file for root in self._roots for file in _files(root))


def _roots() -> set[Path]:
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files = {Path(name).resolve() for name in names if isinstance(name, str) and name.endswith(".py")}
    roots = {Path(entry).resolve() for entry in sys.path}

    def is_installed(path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in installed)

    own = [file for file in files if not is_installed(file)]
    return {
        root
        for root in roots
        if root.is_dir()
        and not is_installed(root)
        and _EXCLUDED.isdisjoint(root.parts)
        and any(file.is_relative_to(root) for file in own)
    }


def _files(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not (name.startswith(".") or name in _EXCLUDED or Path(folder, name, "pyvenv.cfg").exists())
        ]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)  # noqa: PTH118 - thousands of files per second
                try:
                    found = os.stat(path)  # noqa: PTH116
                except OSError:  # deleted in the meantime
                    continue
                yield path, (found.st_mtime_ns, found.st_size)
