"""The pictures of the documentation. ``make pictures`` writes them to docs/pictures."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_accessibility import PAGES, PHONE

FOLDER = Path(os.environ.get("JOBCHAINS_PICTURES", ".cache/browser"))
DESKTOP = {"width": 1200, "height": 900}
TALL = {"width": 1200, "height": 1400}
MAX_BYTES = 150_000


@dataclass(frozen=True)
class Picture:
    name: str
    #: The name of a page in ``PAGES``.
    page: str
    options: dict[str, Any]
    #: The selector of the part that is shown. If it is empty, everything that fits into the viewport is shown.
    part: str = ""


PICTURES = (
    Picture("dashboard", "dashboard", {"viewport": TALL}),
    Picture("dashboard-dark", "dashboard", {"viewport": TALL, "color_scheme": "dark"}),
    Picture("dashboard-phone", "dashboard", {"viewport": PHONE}),
    Picture("list", "chains", {"viewport": DESKTOP}),
    Picture("chain", "failed chain", {"viewport": DESKTOP}),
    Picture("chain-dark", "failed chain", {"viewport": DESKTOP, "color_scheme": "dark"}),
    Picture("chain-phone", "failed chain", {"viewport": PHONE}),
    Picture("graph", "fan-in", {"viewport": DESKTOP}, "#content svg"),
    Picture("complete", "complete", {"viewport": DESKTOP}),
)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_pictures(busy, ids, visit, picture):
    page = visit(busy, "root", **picture.options)
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page.goto(PAGES[picture.page](ids))
    shown = page.locator(picture.part).first if picture.part else page
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{picture.name}.png"
    shown.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < MAX_BYTES
