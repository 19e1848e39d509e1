"""A worker process, started and stopped as in a deployment."""

import os
import signal
import subprocess
import sys
import threading
from types import TracebackType

from django.conf import settings

LAST_LINES = 40


class WorkerProcess:
    """``manage.py run_jobworker`` for one queue. The process always ends when the block is left."""

    def __init__(self, queue: str, database_url: str) -> None:
        self.arguments = ["run_jobworker", "--queue", queue, "--slots", "4", "--verbosity", "2"]
        self.lines: list[str] = []
        self._environment = {**os.environ, "DATABASE_URL": database_url, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}

    def __enter__(self) -> "WorkerProcess":
        self.process = subprocess.Popen(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), *self.arguments, "--no-color"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="worker output", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_alive:
            self.process.kill()
        self.process.wait()
        self._reader.join(timeout=5)

    @property
    def title(self) -> str:
        return " ".join(["manage.py", *self.arguments])

    @property
    def output(self) -> str:
        """The last lines of the output; complete once the process has ended."""
        if not self.is_alive:
            self._reader.join(timeout=5)
        return "\n".join(f"  {line}" for line in self.lines[-LAST_LINES:])

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, seconds: float) -> int | None:
        """Send SIGTERM and wait. Return the exit code, or None if the process did not stop in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def _read(self) -> None:
        """Drain the pipe: the worker would block on a full one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
