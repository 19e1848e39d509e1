"""Programs from packages of Debian or Ubuntu, unpacked in ``.cache``: nothing is installed, and no service starts."""

import os
import shutil
from pathlib import Path

from tests.support.servers import Unavailable
from tests.support.servers.downloads import apt_get, fetch, unpacked


def program(name: str, package: str, *libraries: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs the program: the machine's, or the one of a package.

    ``libraries``: packages that it needs and that a machine may not have.
    """
    if found := shutil.which(name):
        return (found,)
    folder = contents(package, *libraries)
    path = next(folder.glob(f"usr/*bin/{name}"), None)
    if path is None:
        raise Unavailable(f"The package {package} has no program {name}.")
    beside = ":".join(str(path) for path in folder.glob("usr/lib/*-linux-gnu"))
    return ("env", f"LD_LIBRARY_PATH={beside}", str(path)) if beside else (str(path),)


def contents(*packages: str) -> Path:
    """Return a folder with the files of these packages. The first one gives it its name."""
    return unpacked(f"deb-{packages[0]}", lambda partial: _unpack(partial, *packages))


def _unpack(folder: Path, *packages: str) -> None:
    if os.geteuid() == 0:  # otherwise the lists of packages are as old as they are
        apt_get("update")
    apt_get("download", *packages, folder=folder)
    for archive in folder.glob("*.deb"):
        fetch("dpkg-deb", "--extract", str(archive), str(folder))
        archive.unlink()
