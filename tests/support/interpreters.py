"""Find the Python versions that the tests run on."""

import os
import shutil
import subprocess
from glob import glob
from pathlib import Path


def find_python(*versions: str) -> str:
    """Return the path of the first of these versions that is installed, or else the number of the first one.

    nox skips a session whose version it cannot find, and fails where ``CI`` is set.
    """
    paths = (path for version in versions for path in candidates(version) if works(path, version))
    return next(paths, versions[0])


def candidates(version: str) -> list[str]:
    """Return the possible paths of this version. Pyenv's versions, which nox ignores, may not be on the ``PATH``."""
    pyenv = os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv"
    # Unlike Path.glob, this one ignores folders that it may not read.
    pythons = sorted(glob(f"{pyenv}/versions/{version}*/bin/python"), reverse=True)  # noqa: PTH207
    return [*filter(None, [shutil.which(f"python{version}")]), *pythons]


def works(python: str, version: str) -> bool:
    """Return whether this Python starts. Some candidates are scripts of pyenv that fail."""
    code = "import sys, ensurepip, sqlite3, ssl, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version
