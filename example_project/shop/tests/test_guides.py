"""The guides quote the shop's code, and every link and name in them exists."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest import skipUnless

from django.conf import settings
from django.test import SimpleTestCase

from django_jobchains import chains, testing

GUIDES: Path = settings.BASE_DIR.parent / "docs" / "guides"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGE_BLOCK = re.compile(r"^```(?:html|javascript)\n\S+ (shop/\S+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


def pages() -> Iterator[tuple[Path, str]]:
    for page in sorted(GUIDES.glob("*.md")):
        yield page, page.read_text(encoding="utf-8")


@skipUnless(GUIDES.is_dir(), "The example was copied without the guides.")
class GuideTests(SimpleTestCase):
    def test_code_blocks_are_in_the_file_that_they_name(self) -> None:
        found = 0
        for page, text in pages():
            for block in BLOCK.findall(text):
                path, _, code = block.partition("\n")
                if not path.startswith("# shop/"):
                    continue
                with self.subTest(page=page.name, path=path):
                    assert_is_in(code, (settings.BASE_DIR / path[2:]).read_text(encoding="utf-8"))
                    found += 1
        assert found >= 15

    def test_templates_and_scripts_are_in_the_file_that_they_name(self) -> None:
        found = 0
        for page, text in pages():
            for path, code in PAGE_BLOCK.findall(text):
                with self.subTest(page=page.name, path=path):
                    assert code in (settings.BASE_DIR / path).read_text(encoding="utf-8")
                    found += 1
        assert found >= 2

    def test_links_point_to_existing_files_and_headings(self) -> None:
        for page, text in pages():
            for path, anchor in LINK.findall(CODE.sub("", text)):
                with self.subTest(page=page.name, link=f"{path}#{anchor}"):
                    target = page.parent / path if path else page
                    assert target.exists()
                    assert not anchor or anchor in anchors(target)

    def test_other_code_compiles_and_uses_existing_names(self) -> None:
        for page, text in pages():
            for block in BLOCK.findall(text):
                with self.subTest(page=page.name):
                    compile(block, page.name, "exec")
            for module in (chains, testing):
                name = module.__name__.rpartition(".")[2]
                for attribute in re.findall(rf"\b{name}\.(\w+)\(", text):
                    with self.subTest(page=page.name, name=f"{name}.{attribute}"):
                        assert hasattr(module, attribute)

    def test_every_pattern_is_in_the_table(self) -> None:
        index = (GUIDES / "patterns.md").read_text(encoding="utf-8")
        modules = {path.stem for path in (settings.BASE_DIR / "shop" / "patterns").glob("[a-z]*.py")}
        for name in {"linear", *modules}:
            anchor = name.replace("_", "-")
            assert f"{anchor}](" in index


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def assert_is_in(code: str, source: str) -> None:
    """Check each definition by itself. The guides may reorder definitions and dedent methods."""
    for part in re.split(r"\n\n(?=\S)", code.strip()):
        indented = (textwrap.indent(part, " " * width) for width in (0, 4))
        assert any(candidate in source for candidate in indented), part
