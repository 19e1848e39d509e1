"""Copies of the working tree, so that the original is not changed."""

import compileall
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutations import ROOT


def copy_working_tree(target: Path) -> None:
    """Copy the files that git tracks, with uncommitted changes, and new files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in set(os.fsdecode(listed.stdout).split("\0")) - {""}:
        if (ROOT / name).is_file():  # not deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    compileall.compile_dir(target, quiet=2)


@contextmanager
def copied(tree: Path) -> Iterator[Path]:
    """Yield a copy of a tree for one run, which is deleted afterwards."""
    with tempfile.TemporaryDirectory(dir=tree.parent, ignore_cleanup_errors=True) as folder:
        yield Path(shutil.copytree(tree, Path(folder) / "tree"))


def apply(patch: Path, tree: Path) -> str | None:
    """Apply a patch, even if its lines have moved. Return an error message if it does not apply."""
    done = subprocess.run(
        ["git", "apply", "--recount", str(patch)],
        cwd=tree,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},  # otherwise git may find a repository above
        capture_output=True,
        text=True,
    )
    return done.stderr.strip() if done.returncode else None
