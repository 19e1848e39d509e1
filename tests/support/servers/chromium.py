"""Chromium for browser tests: the one on the ``PATH``, or the system's package."""

import os
import shutil
import subprocess

from tests.support.servers import Unavailable
from tests.support.servers.downloads import apt_get

#: The headless shell, which has no user interface, loads a page in half the time of the others.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: The first one that the distribution has is installed.
PACKAGES = ("chromium-headless-shell", "chromium")
#: Without a font, a browser draws no text.
FONTS = "fonts-dejavu-core"


def chromium() -> str:
    """Return the path of a browser that starts; install one if there is none."""
    named = os.environ.get("JOBCHAINS_TEST_CHROMIUM")
    if named and not starts(named):
        raise Unavailable("JOBCHAINS_TEST_CHROMIUM names a browser that does not start.")
    return named or found() or installed()


def found() -> str | None:
    return next((path for path in filter(None, map(shutil.which, NAMES)) if starts(path)), None)


def starts(path: str) -> bool:
    """Return whether the browser starts. On some systems it is a script that only explains how to install it."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def installed() -> str:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable(f"No {' or '.join(NAMES)} on PATH, and only root can install one with apt-get.")
    print("Installing Chromium, which takes a minute ...", flush=True)
    apt_get("update")
    problems = []
    for package in PACKAGES:
        try:
            apt_get("install", "--yes", "--no-install-recommends", package, FONTS)
        except Unavailable as error:
            problems.append(str(error))
        if path := found():
            return path
    raise Unavailable("\n".join(problems) or "apt-get installed Chromium, but it does not start.")
