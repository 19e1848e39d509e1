"""The errors of child pools.

JobchainsError
├── PoolClosed                   the pool was terminated
├── PoolTimeout                  no child became free in time (a TimeoutError)
├── PoolKeyConflict              a strict pool has no room for a child of this key
├── ChildStartFailed            a strict pool could not start a child
├── ChildCrashed                the child process died
├── ChildTimeout                a call took too long, and its child was ended (a TimeoutError)
└── RemoteError                  the function raised an error
"""

import signal

from django_jobchains.exceptions import JobchainsError


class PoolClosed(JobchainsError):
    def __init__(self) -> None:
        super().__init__("The pool was terminated. Create a new one.")


class PoolTimeout(JobchainsError, TimeoutError):
    """No child became free, or started, within the ``timeout`` of ``acquire``."""

    def __init__(self, key: str, seconds: float) -> None:
        self.key = key
        super().__init__(f"No child for key {key!r} within {seconds:g} seconds. Release children sooner, increase "
                         "max_workers or the timeout, or check is_saturated() first.")  # fmt: skip


class PoolKeyConflict(JobchainsError):
    """A strict pool is full, and does not replace an idle child of another key."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"The pool is full of children with other keys than {key!r}, and strict=True forbids "
                         "replacing one. Increase max_workers, or use a pool for each key.")  # fmt: skip


class ChildStartFailed(JobchainsError):
    """A child could not start. ``level`` is the requested isolation."""

    def __init__(self, level: str, reason: str) -> None:
        self.level = level
        self.reason = reason
        super().__init__(f"No child with isolation {level!r} could start: {reason}")


class ChildCrashed(JobchainsError):
    """The child process of a call died. ``exitcode`` is negative for the signal that killed it.

    ``stderr``: the last 4 KiB that it wrote to its standard error.
    """

    def __init__(self, exitcode: int, stderr: str = "") -> None:
        self.exitcode = exitcode
        self.stderr = stderr
        last = "".join(f" Its last output: {line}" for line in stderr.strip().splitlines()[-1:])
        super().__init__(f"The child process {exit_text(exitcode)}.{last}")


class ChildTimeout(JobchainsError, TimeoutError):
    """A call did not return within its ``timeout``. Its child was ended."""

    def __init__(self, target: str, seconds: float) -> None:
        self.target = target
        super().__init__(f"{target!r} did not return within {seconds:g} seconds, and was stopped.")


class RemoteError(JobchainsError):
    """The function raised an error in its child, which stays alive. This contains only the text of the error."""

    #: The type with its module, if known.
    qualified_type_name: str | None = None

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        super().__init__(f"{type_name}: {message}" if message else type_name)


def exit_text(exitcode: int) -> str:
    """Return an exit code in words: "was killed by SIGSEGV", "exited with code 3"."""
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"was killed by signal {-exitcode}"
