"""Guards of the package, each with a patch that breaks it: ``python -m tests.mutations [name …]``.

A guard is a line that prevents an error: a fence, a lock order, a permission check, a time limit. Each file in
``patches`` removes one and names the tests that must fail then. The command applies each patch to a copy of the working
tree, runs its tests there, and reports whether they failed.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = Path(__file__).parent / "patches"
