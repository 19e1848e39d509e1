"""The pictures of the documentation. ``make pictures`` writes them to docs/pictures."""

import os
from pathlib import Path

import pytest

from tests.browser.test_accessibility import PAGES, PHONE

FOLDER = Path(os.environ.get("JOBCHAINS_PICTURES", ".cache/browser"))
DESKTOP = {"width": 1200, "height": 900}
TALL = {"width": 1200, "height": 1400}
MAX_BYTES = 150_000

#: For each picture: a page of ``PAGES``, the size and options of the window, and the part that is shown if not all.
PICTURES = {
    "dashboard": ("dashboard", TALL, {}, ""),
    "dashboard-dark": ("dashboard", TALL, {"color_scheme": "dark"}, ""),
    "dashboard-phone": ("dashboard", PHONE, {}, ""),
    "list": ("chains", DESKTOP, {}, ""),
    "chain": ("failed chain", DESKTOP, {}, ""),
    "chain-dark": ("failed chain", DESKTOP, {"color_scheme": "dark"}, ""),
    "chain-phone": ("failed chain", PHONE, {}, ""),
    "graph": ("fan-in", DESKTOP, {}, "#content svg"),
    "schedule": ("schedule", DESKTOP, {}, ""),
    "complete": ("complete", DESKTOP, {}, ""),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(busy, ids, visit, name):
    shown, size, options, part = PICTURES[name]
    page = visit(busy, "root", viewport=size, **options)
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page.goto(PAGES[shown](ids))
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    (page.locator(part).first if part else page).screenshot(path=path, animations="disabled")
    assert path.stat().st_size < MAX_BYTES
