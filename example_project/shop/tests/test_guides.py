"""What the guides show is the shop's own code, and what they name exists."""

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
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def pages() -> Iterator[tuple[Path, str]]:
    for page in sorted(GUIDES.glob("*.md")):
        yield page, page.read_text(encoding="utf-8")


@skipUnless(GUIDES.is_dir(), "The example was copied without the guides.")
class GuideTests(SimpleTestCase):
    def test_code_that_names_its_file_is_in_it(self) -> None:
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

    def test_links_lead_to_files(self) -> None:
        for page, text in pages():
            for link in LINK.findall(text):
                with self.subTest(page=page.name, link=link):
                    assert (page.parent / link).exists()

    def test_other_code_can_be_compiled_and_names_what_exists(self) -> None:
        for page, text in pages():
            for block in BLOCK.findall(text):
                with self.subTest(page=page.name):
                    compile(block, page.name, "exec")
            for module in (chains, testing):
                name = module.__name__.rpartition(".")[2]
                for attribute in re.findall(rf"\b{name}\.(\w+)\(", text):
                    with self.subTest(page=page.name, name=f"{name}.{attribute}"):
                        assert hasattr(module, attribute)

    def test_every_pattern_has_its_page_in_the_index(self) -> None:
        index = (GUIDES / "patterns.md").read_text(encoding="utf-8")
        modules = {path.stem for path in (settings.BASE_DIR / "shop" / "patterns").glob("[a-z]*.py")}
        for name in {"linear", *modules}:
            page = f"{name.replace('_', '-')}.md"
            assert f"]({page})" in index
            assert (GUIDES / page).exists()


def assert_is_in(code: str, source: str) -> None:
    """Definitions follow each other as they like, and methods are moved to the margin."""
    for part in re.split(r"\n\n(?=\S)", code.strip()):
        indented = (textwrap.indent(part, " " * width) for width in (0, 4))
        assert any(candidate in source for candidate in indented), part
