"""The environment of functions in child processes with ``minimal_env``."""

import os
from contextlib import suppress
from pathlib import Path

#: Names, and prefixes of names that end with an underscore or asterisk.
KEPT_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "DJANGO_SETTINGS_MODULE"}
)
KEPT_PREFIXES = ("LC_", "PYTHON")


def is_kept(name: str) -> bool:
    return name in KEPT_NAMES or name.startswith(KEPT_PREFIXES)


def minimize_environment() -> None:
    """Remove the other variables from this process: from ``os.environ``, and from what the kernel shows of it.

    The settings were loaded before, with all variables.
    """
    kept = {name: value for name, value in os.environ.items() if is_kept(name)}
    os.environ.clear()
    _erase_initial_environment()
    os.environ.update(kept)


def _erase_initial_environment() -> None:
    """Overwrite the strings in ``/proc/self/environ``, which removing a variable leaves in memory.

    Nothing refers to them anymore, because the environment is empty.
    """
    with suppress(OSError):  # The system has no such file.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        if 0 < start < end:
            import ctypes

            ctypes.memset(start, 0, end - start)
