"""The virtual environments at the two ends of the supported versions, made once in .cache."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from glob import glob
from itertools import chain
from pathlib import Path
from threading import Lock

from tests.matrix import CACHE, ROOT, Unavailable
from tests.matrix.commands import fetch, output

NEWER = ("3.14", "3.13", "3.12")
LOWEST = "3.11"
PYPROJECT = ROOT / "pyproject.toml"


def newest() -> str:
    """Python of an environment with the newest Python here and the newest of all that it admits."""
    python = find_python(NEWER)
    if python is None:
        raise Unavailable(f"No Python {', '.join(NEWER)} on PATH or in pyenv.")
    return environment("newest", python, "--upgrade")


def oldest() -> str:
    """Python of an environment with every dependency at the lowest version that pyproject.toml admits."""
    python = find_python([LOWEST])
    if python is None:
        raise Unavailable(f"No Python {LOWEST} on PATH or in pyenv.")
    pins = CACHE / "lowest.txt"
    pins.parent.mkdir(exist_ok=True)
    pins.write_text("\n".join(lowest_pins()))
    return environment("oldest", python, "--constraint", str(pins))


def with_playwright(python: str) -> str:
    """Python of an environment with what drives a browser."""
    return environment("playwright", python, "--group", "browser")


def lowest_pins() -> list[str]:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    requirements = chain(project["dependencies"], *project["optional-dependencies"].values())
    lowest = (re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement) for requirement in requirements)
    return [f"{found[1]}=={found[2]}" for found in lowest if found]


def find_python(versions: Iterable[str]) -> str | None:
    return next((python for version in versions for python in candidates(version) if works(python, version)), None)


def candidates(version: str) -> list[str]:
    pyenv = os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"
    # Unlike Path.glob, this one passes over what it may not read.
    pythons = sorted(glob(f"{pyenv}/versions/{version}*/bin/python"), reverse=True)  # noqa: PTH207
    return [sys.executable, *filter(None, [shutil.which(f"python{version}")]), *pythons]


def works(python: str, version: str) -> bool:
    """Also tells a stand-in of pyenv on PATH, which fails when called, from a Python."""
    code = "import sys, ensurepip, sqlite3, ssl, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


_one_at_a_time = Lock()


def environment(name: str, python: str, *options: str) -> str:
    with _one_at_a_time:
        return _environment(name, python, *options)


def _environment(name: str, python: str, *options: str) -> str:
    """Python of the environment, which is made anew when pyproject.toml or the Python is another one."""
    folder = CACHE / name
    inside = str(folder / "bin" / "python")
    made_from = folder / "made-from.txt"
    recipe = "\n".join([fetch(python, "-VV"), *options, PYPROJECT.read_text()])
    if not made_from.exists() or made_from.read_text() != recipe:
        output.say(f"Preparing the {name} environment with {python} ...")
        fetch(python, "-m", "venv", "--clear", str(folder))
        fetch(inside, "-m", "pip", "install", "-qq", "--upgrade", "pip>=25.1")
        fetch(inside, "-m", "pip", "install", "-qq", *options, "--editable", ".[all]", "--group", "test")
        made_from.write_text(recipe)
    output.say(fetch(inside, "-c", _VERSIONS))
    return inside


_VERSIONS = """
import platform, sqlite3, django, psycopg
print(f"Python {platform.python_version()}, Django {django.__version__}, psycopg {psycopg.__version__}")
"""
