"""An extra installs only what the package imports."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import django_jobchains

PACKAGE = Path(django_jobchains.__file__).parent
PYPROJECT = PACKAGE.parent / "pyproject.toml"
EXTRAS: dict[str, list[str]] = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
DISTRIBUTIONS = [
    (extra, re.split(r"[\[<>=]", requirement)[0]) for extra in EXTRAS if extra != "all" for requirement in EXTRAS[extra]
]


def imported_modules() -> Iterator[str]:
    """Yield the top-level names that the package's files import."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.partition(".")[0]


def test_the_package_imports_what_each_extra_installs() -> None:
    provided = packages_distributions()
    imported = {name.lower() for module in set(imported_modules()) for name in provided.get(module, [])}
    # tzdata has no code: zoneinfo reads it on systems without a database of time zones.
    assert not [(extra, name) for extra, name in DISTRIBUTIONS if name.lower() not in {*imported, "tzdata"}]


def test_all_is_every_other_extra() -> None:
    (requirement,) = EXTRAS["all"]
    assert requirement == f"django_jobchains[{','.join(extra for extra in EXTRAS if extra != 'all')}]"
