"""The job log in memory: adding an entry never blocks, and the number of entries in memory is limited."""

import threading
import time
from collections import deque

from django_jobchains.store.rows import AttemptKey, ClaimedJob, LogEntries, NewLogLine, NewProgress

#: The number of lines that are kept of an attempt: half of them the first, half the last, with a gap in between.
MAX_LINES = 1_000
HALF = MAX_LINES // 2
#: The number of characters that may wait in memory for one attempt, half of them of its first lines.
MAX_CHARACTERS_PER_ATTEMPT = 256 * 1024
#: The number of characters that may wait in memory for all attempts.
MAX_CHARACTERS = 16 * 1024 * 1024
#: Above one of these limits, no further attempt is added to a batch of entries.
MAX_LINES_AT_ONCE = 1_000
MAX_CHARACTERS_AT_ONCE = 512 * 1024
#: The size of a line without its text.
_LINE_CHARACTERS = 200


class JobLogBuffer:
    """The log entries of a worker's attempts that are not written yet. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: The attempts with entries to write, the oldest first.
        self._waiting: dict[AttemptKey, AttemptLog] = {}
        self._characters = 0
        #: The number of lines that were dropped to make room for other attempts.
        self.dropped = 0
        #: Set while entries wait.
        self.has_entries = threading.Event()
        #: Set when the entries should be written immediately, because an attempt has ended.
        self.is_urgent = threading.Event()

    def log_of(self, job: ClaimedJob) -> "AttemptLog":
        """Return a new log for an attempt."""
        return AttemptLog(job, self)

    def ended(self, key: AttemptKey) -> None:
        """Request that the entries of an ended attempt are written immediately."""
        if self._waiting and key in self._waiting:
            self.is_urgent.set()

    def take(self) -> list[LogEntries]:
        """Remove and return the oldest entries, up to the limits of a batch."""
        with self.lock:
            taken, lines, characters = list[LogEntries](), 0, self._characters
            while self._waiting and lines < MAX_LINES_AT_ONCE:
                taken.append(self._first().take())
                lines += len(taken[-1].lines)
                if characters - self._characters >= MAX_CHARACTERS_AT_ONCE:
                    break
            if not self._waiting:
                self.has_entries.clear()
                self.is_urgent.clear()
            return taken

    def added(self, log: "AttemptLog", characters: int) -> None:
        """Account for new entries of an attempt. The caller holds the lock."""
        self._waiting[log.key] = log
        self._characters += characters
        while self._characters > MAX_CHARACTERS:
            self.dropped += len(self._first().take().lines)
        if not self.has_entries.is_set():
            self.has_entries.set()

    def _first(self) -> "AttemptLog":
        """Remove and return the attempt that has waited longest."""
        log = self._waiting.pop(next(iter(self._waiting)))
        self._characters -= log.characters
        return log


class AttemptLog:
    """The log of one attempt, created with its first entry."""

    def __init__(self, job: ClaimedJob, log_buffer: JobLogBuffer) -> None:
        self.key = job.key
        self._attempt = job.attempt
        self._log_buffer = log_buffer
        self._count = 0
        self._first = _Lines()
        self._last = _Lines()
        self._progress: NewProgress | None = None
        #: Stored lines between the first half and this position are deleted.
        self._deleted = HALF

    @property
    def characters(self) -> int:
        return self._first.characters + self._last.characters

    def add(self, level: int, text: str, fields: str | None) -> None:
        """Add a line. ``text`` and ``fields``, a JSON text, can be stored as they are."""
        now = time.monotonic()
        with self._log_buffer.lock:
            before = self.characters
            line = NewLogLine(self._count, now, level, text, fields)
            self._count += 1
            if line.position >= HALF or not self._first.add_if_room(line):
                self._last.add(line)
            self._log_buffer.added(self, self.characters - before)

    def set_progress(self, fraction: float, text: str) -> None:
        now = time.monotonic()
        with self._log_buffer.lock:
            self._progress = NewProgress(fraction, text, now)
            self._log_buffer.added(self, 0)

    def take(self) -> LogEntries:
        """Remove and return the entries. The caller holds the buffer's lock."""
        entries = LogEntries(*self.key, self._attempt, [*self._first.take(), *self._last.take()], self._progress)
        entries.outdated = range(self._deleted, self._count - HALF)
        self._deleted = max(self._deleted, self._count - HALF)
        self._progress = None
        return entries


class _Lines:
    def __init__(self) -> None:
        self._lines: deque[NewLogLine] = deque()
        self.characters = 0

    def add_if_room(self, line: NewLogLine) -> bool:
        if self.characters + _characters(line) > MAX_CHARACTERS_PER_ATTEMPT // 2:
            return False
        self._append(line)
        return True

    def add(self, line: NewLogLine) -> None:
        """Add a line, and drop the oldest ones to make room for it."""
        self._append(line)
        while len(self._lines) > HALF or self.characters > MAX_CHARACTERS_PER_ATTEMPT // 2:
            self.characters -= _characters(self._lines.popleft())

    def take(self) -> list[NewLogLine]:
        taken = list(self._lines)
        self._lines.clear()
        self.characters = 0
        return taken

    def _append(self, line: NewLogLine) -> None:
        self._lines.append(line)
        self.characters += _characters(line)


def _characters(line: NewLogLine) -> int:
    return len(line.text) + len(line.fields or "") + _LINE_CHARACTERS
