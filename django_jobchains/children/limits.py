"""The limits that the operating system enforces on a child process, and what it reports about the process.

Linux supports everything. ``start_problem`` and ``limit_problem`` report the limits that other systems do not support.
"""

import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from django_jobchains.isolation import Isolation

#: Added to the score by which the kernel chooses a process to kill when memory runs out.
OOM_SCORE_RAISE = 300
_PR_SET_PDEATHSIG = 1
_IS_LINUX: bool = sys.platform == "linux"


def cpu_count() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_problem() -> str:
    """Return why this operating system cannot start child processes, or ""."""
    if os.name == "posix" and hasattr(os, "posix_spawn"):
        return ""
    return "child processes need a POSIX system, such as Linux or macOS"


def limit_problem(isolation: Isolation) -> str:
    """Return why this operating system does not enforce a limit, or ""."""
    if isolation.memory_limit is None or _IS_LINUX:
        return ""
    return "memory_limit is enforced on Linux only: use max_rss, or limit the memory of the container"


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, even while C code holds the GIL."""
    if _IS_LINUX:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # The parent died before.
        os._exit(1)


def raise_oom_score() -> None:
    """Let the kernel kill this process before the one that called it if memory runs out."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):  # Not available on this system, or not allowed in this container.
        score.write_text(str(min(int(score.read_text()) + OOM_SCORE_RAISE, 1000)))


def limit_memory(size: int) -> None:
    """Let allocations fail with ``MemoryError`` above this address space, in bytes, where the system supports that.

    On macOS, this does nothing: the system refuses such limits, and the child would not start.
    """
    if not _IS_LINUX:
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def limit_cpu(seconds: float) -> None:
    """Let the kernel send SIGXCPU after this much more CPU time. Its clock counts whole seconds."""
    import resource

    soft, hard = math.ceil(time.process_time() + seconds), resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def resident_bytes(pid: int | str = "self") -> int:
    """Return the memory of a process, or 0 if it has ended. Without /proc, only its own peak is known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if pid != "self":
            return 0
    try:
        import resource
    except ImportError:  # Windows lacks it.
        return 0
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def has_proc() -> bool:
    """Return whether the memory of other processes can be read."""
    return _IS_LINUX
