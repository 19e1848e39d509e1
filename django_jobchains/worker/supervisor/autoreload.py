"""The project's Python files, for ``--reload``."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: Folders without code of the project.
_EXCLUDED = {"__pycache__", "node_modules", "site-packages", "dist-packages"}


class SourceFiles:
    """All Python files below those folders of the import path that contain loaded modules of the project.

    ``django.utils.autoreload`` watches the modules loaded by its own process. The supervisor has not loaded code that
    was added since its start, or files that cannot be imported, but must notice when they change.
    """

    def __init__(self) -> None:
        self._roots = _roots()
        self._files = self._read()
        self._is_changing = False

    def have_changed(self) -> bool:
        """Return whether files have changed since the last change. Waits for a call without a change in between,
        because editors save several files."""
        now = self._read()
        differs, self._files = now != self._files, now
        is_complete = self._is_changing and not differs
        self._is_changing = differs
        return is_complete

    def _read(self) -> dict[str, tuple[int, int]]:
        return dict(file for root in self._roots for file in _files(root))


def _roots() -> set[Path]:
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    files = {Path(file).resolve() for module in list(sys.modules.values()) if (file := _file(module))}
    return {
        root
        for root in (Path(entry).resolve() for entry in sys.path)
        if root.is_dir()
        and not any(root.is_relative_to(folder) for folder in installed)
        and _EXCLUDED.isdisjoint(root.parts)
        and any(_is_project_file(file, root, installed) for file in files)
    }


def _is_project_file(file: Path, root: Path, installed: set[Path]) -> bool:
    return file.is_relative_to(root) and not any(file.is_relative_to(folder) for folder in installed)


def _file(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None


def _files(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_excluded(folder, name)]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)  # noqa: PTH118 - thousands of files per second
                try:
                    found = os.stat(path)  # noqa: PTH116
                except OSError:  # deleted in the meantime
                    continue
                yield path, (found.st_mtime_ns, found.st_size)


def _is_excluded(folder: str, name: str) -> bool:
    is_environment = os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118
    return name.startswith(".") or name in _EXCLUDED or is_environment
