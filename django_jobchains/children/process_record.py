"""A child process, from the side of the preload process."""

import json
import os
import select
import signal
from contextlib import suppress

#: How much of the end of a child's standard error is kept.
STDERR_BYTES = 4096
#: How much is read at once: the capacity of a pipe. A child that writes without a pause must not delay the others.
PIPE_BYTES = 65536


class ProcessRecord:
    """``report``: a socket that gets one line when the child has ended, or could not start.

    The caller signals the child itself, so the child is reaped only after the caller has closed the other end: until
    then, its pid cannot belong to another process.
    """

    def __init__(self, report: int) -> None:
        self.pid = 0
        self.report = report
        #: Whether the end was reported.
        self.is_reported = False
        self._exitcode = 0
        self._tail = b""
        self.stderr, self.stderr_writer = os.pipe()
        os.set_blocking(self.stderr, False)

    def close_writer(self) -> None:
        os.close(self.stderr_writer)

    def kill(self) -> None:
        """Kill it and its process group."""
        self._kill_group()
        with suppress(ProcessLookupError):  # It may have no group yet.
            os.kill(self.pid, signal.SIGKILL)

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
        if not hasattr(os, "waitid"):  # macOS before Python 3.13. It does not use a pid again soon.
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._exitcode = os.waitstatus_to_exitcode(status) if pid else 0
            return bool(pid)
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self._exitcode = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._kill_group()
        return True

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def report_end(self) -> None:
        self.read_stderr()
        self._report({"exitcode": self._exitcode, "stderr": self._tail.decode(errors="replace")})

    def report_failure(self, error: Exception) -> None:
        """Report that it could not be started."""
        self._report({"failed": f"{type(error).__name__}: {error}"})
        os.close(self.report)

    def _report(self, report: dict[str, object]) -> None:
        self.is_reported = True
        with suppress(OSError):  # Nobody needs the report anymore.
            os.write(self.report, json.dumps(report).encode())
        os.close(self.stderr)
        self.stderr = -1

    def reap(self) -> None:
        """Release the pid, after the caller has closed its end."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self.report)


def _pass_on(text: bytes) -> None:
    """Write to the standard error of this process, unless that would block and delay the children."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    for start in range(0, len(text), select.PIPE_BUF):
        if not any(events & select.POLLOUT for _, events in poll.poll(0)):
            return
        with suppress(OSError):
            os.write(2, text[start : start + select.PIPE_BUF])
