"""Programs from packages of Debian or Ubuntu, unpacked in ``.cache``: nothing is installed, and no service starts."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.servers import Unavailable
from tests.support.servers.chromium import APT_GET
from tests.support.servers.downloads import fetch, unpacked


def program(name: str, package: str, *libraries: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs the program: the machine's, or the one of a package.

    ``libraries``: packages that it needs and that a machine may not have.
    """
    if found := shutil.which(name):
        return (found,)
    folder = unpacked(f"deb-{package}", lambda partial: _unpack(partial, package, *libraries))
    path = next(folder.glob(f"usr/*bin/{name}"), None)
    if path is None:
        raise Unavailable(f"The package {package} has no program {name}.")
    beside = ":".join(str(path) for path in folder.glob("usr/lib/*-linux-gnu"))
    return ("env", f"LD_LIBRARY_PATH={beside}", str(path)) if beside else (str(path),)


def _unpack(folder: Path, *packages: str) -> None:
    if os.geteuid() == 0:  # otherwise the lists of packages are as old as they are
        fetch(*APT_GET, "update")
    try:
        subprocess.run(
            ("apt-get", "-qq", "download", *packages),
            check=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode() or error
        raise Unavailable(f"apt-get cannot download {' '.join(packages)}: {reason}") from error
    for archive in folder.glob("*.deb"):
        fetch("dpkg-deb", "--extract", str(archive), str(folder))
        archive.unlink()
