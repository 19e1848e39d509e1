"""Programs from packages of Debian or Ubuntu, unpacked in ``.cache``: nothing is installed, and no service starts."""

import os
import shutil
import tempfile
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


def program_of_release(release: str, name: str, package: str, *libraries: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs a program of a later release of Debian, with its C library.

    ``libraries``: all packages that it needs, except that of the C library.
    """
    packages = (package, "libc6", *libraries)
    folder = unpacked(f"deb-{release}-{package}", lambda partial: _unpack_release(partial, release, *packages))
    (loader,) = folder.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")
    (path,) = folder.glob(f"usr/*bin/{name}")
    return (str(loader), "--library-path", str(loader.parent), str(path))


def contents(*packages: str) -> Path:
    """Return a folder with the files of these packages. The first one gives it its name."""
    return unpacked(f"deb-{packages[0]}", lambda partial: _unpack(partial, *packages))


def _unpack(folder: Path, *packages: str) -> None:
    if os.geteuid() == 0:  # otherwise the lists of packages are as old as they are
        apt_get("update")
    apt_get("download", *packages, folder=folder)
    _extract(folder)


def _unpack_release(folder: Path, release: str, *packages: str) -> None:
    """Unpack packages of another release. Its lists are kept apart, so that the machine does not install from it."""
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        (own / "lists" / "partial").mkdir(parents=True)
        (own / "sources").write_text(f"deb http://deb.debian.org/debian {release} main\n")
        settings = {
            "Dir::Etc::sourcelist": own / "sources",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": own / "lists",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
        }
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        apt_get(*options, "update")
        apt_get(*options, "download", *packages, folder=folder)
    _extract(folder)


def _extract(folder: Path) -> None:
    for archive in folder.glob("*.deb"):
        fetch("dpkg-deb", "--extract", str(archive), str(folder))
        archive.unlink()
