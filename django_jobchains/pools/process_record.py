"""A child process, from the side of the preload process."""

import json
import math
import os
import select
import signal
import time
from contextlib import suppress

#: How much of the end of a child's standard error is kept.
STDERR_BYTES = 4096
#: How much is read at once: the capacity of a pipe. A child that writes without a pause must not delay the others.
PIPE_BYTES = 65536


class ProcessRecord:
    """``report``: the pipe that gets one line when the child has ended, or could not start."""

    def __init__(self, report: int) -> None:
        self.pid = 0
        #: The monotonic time after which ``kill_overdue`` kills it.
        self.kill_at = math.inf
        self._report = report
        self._tail = b""
        self.stderr, self.stderr_writer = os.pipe()
        os.set_blocking(self.stderr, False)

    def close_writer(self) -> None:
        os.close(self.stderr_writer)

    def send_signal(self, number: int) -> None:
        """Send SIGKILL to its process group, or another signal to itself. It is not reaped, so the pid is still its."""
        with suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                with suppress(ProcessLookupError):  # It has no group yet.
                    os.killpg(self.pid, number)
            os.kill(self.pid, number)

    def kill_after(self, seconds: float) -> None:
        self.kill_at = min(self.kill_at, time.monotonic() + seconds)

    def kill_overdue(self) -> None:
        if time.monotonic() >= self.kill_at:
            self.kill_at = math.inf
            self.send_signal(signal.SIGKILL)

    def read_stderr(self) -> bool:
        """Read once, keep the end of its output, and pass the output on. Return False at the end of file."""
        try:
            received = os.read(self.stderr, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + received)[-STDERR_BYTES:]
        _pass_on(received)
        return bool(received)

    def has_ended(self) -> bool:
        """Return whether it has ended. The rest of its process group is killed while the pid is still its own."""
        if not hasattr(os, "waitid"):  # on macOS
            return self._is_reaped()
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self._kill_group()
        return self._is_reaped()

    def _is_reaped(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self._exitcode = os.waitstatus_to_exitcode(status) if pid else 0
        return bool(pid)

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def report_end(self) -> None:
        self.read_stderr()
        self._close({"exitcode": self._exitcode, "stderr": self._tail.decode(errors="replace")})

    def report_failure(self, error: Exception) -> None:
        """Report that it could not be started."""
        self._close({"failed": f"{type(error).__name__}: {error}"})

    def _close(self, report: dict[str, object]) -> None:
        with suppress(OSError):  # Nobody needs the report anymore.
            os.write(self._report, json.dumps(report).encode())
        os.close(self._report)
        os.close(self.stderr)


def _pass_on(text: bytes) -> None:
    """Write to the standard error of this process, unless that would block and delay the children."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    for start in range(0, len(text), select.PIPE_BUF):
        if not any(events & select.POLLOUT for _, events in poll.poll(0)):
            return
        with suppress(OSError):
            os.write(2, text[start : start + select.PIPE_BUF])
