"""The architecture page names files and classes that exist, and covers every part of the package. Names are unique."""

import ast
import re
from collections import Counter
from pathlib import Path

import django_jobchains

PACKAGE = Path(django_jobchains.__file__).parent
ROOT = PACKAGE.parent
TEXT = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
PATHS = sorted(set(re.findall(r"`([\w/]+(?:\.py|/))`", TEXT)))
#: Names with their files, such as "`JobType.item` (`declare/job_types.py`)" and "`Tables` in `store/database.py`".
PLACES = re.findall(r"`(\w+(?:\.\w+)?)`\s(?:in\s|\()`([\w/]+\.py)`", TEXT)
#: Files for Django and packaging tools, which the page need not name.
SET_UP = {"__init__.py", "apps.py", "locale", "static", "templates", "py.typed"}


def test_every_path_on_the_page_exists() -> None:
    assert not [path for path in PATHS if not (PACKAGE / path).exists() and not (ROOT / path).exists()]


def test_every_name_on_the_page_is_defined_in_its_file() -> None:
    assert not [(name, path) for name, path in PLACES if not is_defined(name, (PACKAGE / path).read_text())]


def is_defined(name: str, source: str) -> bool:
    *classes, last = name.split(".")
    patterns = [*(rf"^class {each}\b" for each in classes), rf"^\s*(?:async def|def|class) {last}\b"]
    return all(re.search(pattern, source, re.MULTILINE) for pattern in patterns)


def test_the_page_covers_every_part_of_the_package() -> None:
    # A folder without Python files is what Git leaves behind of one that was renamed.
    found = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.rglob("*.py"))]
    parts = {path.name for path in found if path.name not in SET_UP}
    named = {path.split("/")[0] for path in PATHS}
    assert not {part for part in parts if part not in named}, "add them to the table of packages"


def test_the_page_is_parsed() -> None:
    assert ("JobType.item", "declare/job_types.py") in PLACES
    assert "worker/claim_loop.py" in PATHS


def test_no_two_classes_have_the_same_name() -> None:
    """Django requires the names of commands and migrations."""
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == {"Command", "Migration"}
