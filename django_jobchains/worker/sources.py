"""The project's Python files, for ``--reload``."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: Folders without code of the project's.
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "dist-packages"}


class Sources:
    """Everything below the import path's folders that the project's loaded modules came from.

    Folders, not the modules that are loaded: a file that could not be imported is loaded by nobody, and must be seen
    when it is mended; so must one that is new.
    """

    def __init__(self) -> None:
        self._roots = _roots()
        self._seen = self._look()
        self._is_changing = False

    def have_changed(self) -> bool:
        """Since the last time; not before a look finds them as the look before did: an editor saves several files."""
        now = self._look()
        differs, self._seen = now != self._seen, now
        has_settled = self._is_changing and not differs
        self._is_changing = differs
        return has_settled

    def _look(self) -> dict[str, tuple[int, int]]:
        return dict(file for root in self._roots for file in _files(root))


def _roots() -> set[Path]:
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    files = {Path(file).resolve() for module in list(sys.modules.values()) if (file := _file(module))}
    return {
        root
        for root in (Path(entry).resolve() for entry in sys.path)
        if root.is_dir()
        and not any(root.is_relative_to(folder) for folder in installed)
        and _LEFT_OUT.isdisjoint(root.parts)
        and any(_is_project_file(file, root, installed) for file in files)
    }


def _is_project_file(file: Path, root: Path, installed: set[Path]) -> bool:
    return file.is_relative_to(root) and not any(file.is_relative_to(folder) for folder in installed)


def _file(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None


def _files(root: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _is_left_out(folder, name)]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)  # noqa: PTH118 - thousands of them, each second
                try:
                    found = os.stat(path)  # noqa: PTH116
                except OSError:  # gone meanwhile
                    continue
                yield path, (found.st_mtime_ns, found.st_size)


def _is_left_out(folder: str, name: str) -> bool:
    is_environment = os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118
    return name.startswith(".") or name in _LEFT_OUT or is_environment
