"""Processes whose clock is wrong, with libfaketime."""

import os
from functools import cache
from pathlib import Path

from tests.support.servers import ROOT, Unavailable
from tests.support.servers.debian import contents

LIBRARY = "usr/lib/*/faketime/libfaketime.so.1"


def clock(seconds):
    """Return the environment of a Python process whose clock differs by this many seconds.

    The monotonic clock, which waits use, is the same for all processes of a host.
    """
    return {
        "LD_PRELOAD": str(library()),
        "FAKETIME": f"{seconds:+}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # it is for old versions of glibc, and lets waits of threads take seconds
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).with_name("faketime_sleep")), str(ROOT)]),
    }


@cache
def library():
    """Return the path of the library: the machine's, or the one of a package."""
    for folder in (Path("/"), contents("libfaketime")):
        if path := next(folder.glob(LIBRARY), None):
            return path
    raise Unavailable("The package libfaketime has no libfaketime.so.1.")
