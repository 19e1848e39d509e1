"""A Chromium for the tests in a browser: the one on PATH, else the system's package."""

import os
import shutil
import subprocess
from threading import Lock

from tests.matrix import Unavailable
from tests.matrix.commands import fetch, output

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APT_GET = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")
#: A browser without a font draws no letters.
PACKAGES = ("chromium", "fonts-dejavu-core")

_one_at_a_time = Lock()


def chromium() -> str:
    """The path of one that starts."""
    named = os.environ.get("JOBCHAINS_TEST_CHROMIUM")
    if named and not starts(named):
        raise Unavailable("JOBCHAINS_TEST_CHROMIUM names a browser that does not start.")
    with _one_at_a_time:
        return named or found() or installed()


def found() -> str | None:
    return next((path for path in filter(None, map(shutil.which, NAMES)) if starts(path)), None)


def starts(path: str) -> bool:
    """Also tells a stand-in that only says where to get it from a browser."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def installed() -> str:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable(f"No {' or '.join(NAMES)} on PATH, and only root with apt-get can install one here.")
    output.say("Installing Chromium, which takes a minute ...")
    fetch(*APT_GET, "update")
    fetch(*APT_GET, "install", "--yes", "--no-install-recommends", *PACKAGES)
    path = found()
    if path is None:
        raise Unavailable("apt-get installed Chromium, but it does not start.")
    return path
