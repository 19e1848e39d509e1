"""How much memory this process has."""

import os
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Of this process now; where the system does not say, the most it ever had."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _highest_resident_bytes()


def _highest_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024


def readable(size: int) -> str:
    return f"{size / 1024**2:.0f}M"
