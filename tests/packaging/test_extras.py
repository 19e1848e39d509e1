"""An extra installs what the package imports, and nothing else."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import django_jobchains

PACKAGE = Path(django_jobchains.__file__).parent
PYPROJECT = PACKAGE.parent / "pyproject.toml"
EXTRAS: dict[str, list[str]] = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
DISTRIBUTIONS = [
    (extra, re.split(r"[\[<>=]", requirement)[0]) for extra in EXTRAS if extra != "all" for requirement in EXTRAS[extra]
]
#: Imports a module where only these files of installed packages exist.
IMPORT_WITH_FILES = """
import importlib, json, sys
from importlib.machinery import PathFinder

class Installed:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.origin and "site-packages" in spec.origin and spec.origin not in files:
            raise ModuleNotFoundError(name + " is not installed", name=name)

files = frozenset(json.load(sys.stdin))
sys.meta_path.insert(0, Installed())
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django_jobchains"])
django.setup()
importlib.import_module(sys.argv[1])
"""


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "module"),
    [
        ("postgres", "store.postgresql"),
        ("postgres", "notifications.postgres"),
        ("redis", "notifications.redis"),
        ("nats", "notifications.nats"),
        ("otel", "telemetry.otel"),
        ("prometheus", "telemetry.otel.prometheus"),
        ("tasks", "tasks_backend"),
    ],
)
def test_an_extra_installs_all_that_its_module_imports(extra: str, module: str) -> None:
    files = json.dumps([file for requirement in ("Django", *EXTRAS[extra]) for file in installed_files(requirement)])
    command = [sys.executable, "-c", IMPORT_WITH_FILES, f"django_jobchains.{module}"]
    done = subprocess.run(command, input=files, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def installed_files(requirement: str, extra: str = "") -> Iterator[str]:
    """Yield the files of a distribution and of those that it requires, unless its own requirement is for an extra."""
    required = Requirement(requirement)
    if required.marker and not required.marker.evaluate({"extra": extra}):
        return
    installed = distribution(required.name)
    yield from (str(installed.locate_file(file)) for file in installed.files or ())
    for each in installed.requires or ():
        for name in required.extras or {""}:
            yield from installed_files(each, name)
