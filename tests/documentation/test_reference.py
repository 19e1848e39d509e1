"""The documentation site lists every public name and every page."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
AUTOMODULE = re.compile(
    r"^\.\. automodule:: (\S+)\n   :members:\n(?:   :exclude-members:((?:.*\n {7})*.*)\n)?", re.MULTILINE
)
#: Modules of ``docs/reference/python``, with the names that their pages leave out.
DESCRIBED = {
    module: set(re.split(r",\s+", left_out.strip())) if left_out else set()
    for page in (DOCS / "reference" / "python").glob("*.md")
    for module, left_out in AUTOMODULE.findall(page.read_text())
}


def test_each_module_of_the_reference_is_described() -> None:
    listed = set(
        re.findall(r"^\| `(django_jobchains[\w.]*)`", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    )
    # The most common names of the others are in the package itself too.
    assert not listed - DESCRIBED.keys() - {"django_jobchains"}


@pytest.mark.parametrize("module", DESCRIBED)
def test_names_that_a_page_leaves_out_are_on_another(module: str) -> None:
    names = DESCRIBED[module]
    described = {id(value) for other in DESCRIBED for _, value in members(other)}
    assert not {name for name in names if id(getattr(importlib.import_module(module), name)) not in described}


def test_each_exception_has_its_own_description() -> None:
    described = [value for _, value in members("django_jobchains.exceptions") if isinstance(value, type)]
    assert not [each.__name__ for each in described if not vars(each)["__doc__"]]


def members(module: str) -> Iterator[tuple[str, object]]:
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module
    ]
    return ((name, getattr(loaded, name)) for name in names if name not in DESCRIBED[module])
