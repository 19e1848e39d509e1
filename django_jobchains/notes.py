"""What jobs say while they run, until it is written: nobody who says something waits, and what waits is bounded."""

import threading
import time
from collections import deque

from django_jobchains.store import AttemptKey, ClaimedJob, Said, SaidLine, SaidProgress

#: Lines that are kept of an attempt: the first half of them, and the last. Positions leap over those left out.
MOST_LINES = 1_000
HALF = MOST_LINES // 2
#: So much of an attempt may wait in memory, half of it for its first lines,
MOST_CHARACTERS_OF_ONE = 256 * 1024
#: so much of all together,
MOST_CHARACTERS = 16 * 1024 * 1024
#: and as much, and a last attempt's, is written at once.
MOST_LINES_AT_ONCE = 1_000
MOST_CHARACTERS_AT_ONCE = 512 * 1024
#: What a line takes beside its text.
_LINE_CHARACTERS = 200


class Notebook:
    """What the attempts of a worker have said and nobody has written yet. Safe to use from any thread."""

    def __init__(self) -> None:
        #: Held for moments.
        self.lock = threading.Lock()
        #: Those that have something to write, the longest waiting in front.
        self._waiting: dict[AttemptKey, Notes] = {}
        self._characters = 0
        #: Lines for which there was no room, of attempts that others pushed out.
        self.dropped = 0
        #: Set while something waits,
        self.has_some = threading.Event()
        #: and when it should not wait for more: an attempt has ended.
        self.is_urgent = threading.Event()

    def ended(self, key: AttemptKey) -> None:
        """What the attempt said is looked for soon."""
        if key in self._waiting:
            self.is_urgent.set()

    def take(self) -> list[Said]:
        """What waited longest, to be written; empty when nothing does."""
        with self.lock:
            taken, lines, characters = list[Said](), 0, self._characters
            while self._waiting and lines < MOST_LINES_AT_ONCE:
                taken.append(self._first().take())
                lines += len(taken[-1].lines)
                if characters - self._characters >= MOST_CHARACTERS_AT_ONCE:
                    break
            if not self._waiting:
                self.has_some.clear()
                self.is_urgent.clear()
            return taken

    def grew(self, notes: "Notes", characters: int) -> None:
        """Under the lock: there is more to write of an attempt."""
        self._waiting[notes.key] = notes
        self._characters += characters
        while self._characters > MOST_CHARACTERS:
            self.dropped += len(self._first().take().lines)
        if not self.has_some.is_set():
            self.has_some.set()

    def _first(self) -> "Notes":
        """Of those that wait; it does so no longer."""
        notes = self._waiting.pop(next(iter(self._waiting)))
        self._characters -= notes.characters
        return notes


class Notes:
    """What one attempt says; made when it says something for the first time."""

    def __init__(self, job: ClaimedJob, notebook: Notebook) -> None:
        self.key = job.key
        self._attempt = job.attempt
        self._notebook = notebook
        self._count = 0
        self._first = _Lines()
        self._last = _Lines()
        self._progress: SaidProgress | None = None
        #: Stored lines in the middle are gone up to here.
        self._deleted = HALF

    @property
    def characters(self) -> int:
        return self._first.characters + self._last.characters

    def say(self, level: int, text: str, fields: str | None) -> None:
        """Of a text and a JSON text that can be stored."""
        said = time.monotonic()
        with self._notebook.lock:
            before = self.characters
            line = SaidLine(self._count, said, level, text, fields)
            self._count += 1
            if line.position >= HALF or not self._first.add_if_room(line):
                self._last.add(line)
            self._notebook.grew(self, self.characters - before)

    def set_progress(self, fraction: float, text: str) -> None:
        said = time.monotonic()
        with self._notebook.lock:
            self._progress = SaidProgress(fraction, text, said)
            self._notebook.grew(self, 0)

    def take(self) -> Said:
        """Under the lock of the notebook."""
        said = Said(*self.key, self._attempt, [*self._first.take(), *self._last.take()], self._progress)
        said.outdated = range(self._deleted, self._count - HALF)
        self._deleted = max(self._deleted, self._count - HALF)
        self._progress = None
        return said


class _Lines:
    """Lines of one attempt that wait."""

    def __init__(self) -> None:
        self._lines: deque[SaidLine] = deque()
        self.characters = 0

    def add_if_room(self, line: SaidLine) -> bool:
        if self.characters + _characters(line) > MOST_CHARACTERS_OF_ONE // 2:
            return False
        self._append(line)
        return True

    def add(self, line: SaidLine) -> None:
        """The oldest make room for it."""
        self._append(line)
        while len(self._lines) > HALF or self.characters > MOST_CHARACTERS_OF_ONE // 2:
            self.characters -= _characters(self._lines.popleft())

    def take(self) -> list[SaidLine]:
        taken = list(self._lines)
        self._lines.clear()
        self.characters = 0
        return taken

    def _append(self, line: SaidLine) -> None:
        self._lines.append(line)
        self.characters += _characters(line)


def _characters(line: SaidLine) -> int:
    return len(line.text) + len(line.fields or "") + _LINE_CHARACTERS
