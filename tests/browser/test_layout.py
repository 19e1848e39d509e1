"""The lists fit into the page, with the sidebar and the filters beside them, and pages have one title."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import DASHBOARD, RECORDS, chain_page, list_of
from tests.browser.test_accessibility import LOCALES, PHONE

LISTS = {"chains": list_of("chain"), "jobs": list_of("job"), "schedules": list_of("schedule"), "records": RECORDS}


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("width", [1280, 1700, PHONE["width"]])
def test_no_part_of_a_list_is_cut_off(busy, ids, visit, width, locale):
    page, sizes = visit(busy, "root", viewport={"width": width, "height": 900}, locale=locale), {}
    page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'true')")
    for name, address in LISTS.items():
        page.goto(address)
        expect(page.locator("#nav-sidebar")).to_be_visible(visible=width != PHONE["width"])
        expect(page.locator("#changelist-filter")).to_be_visible()
        sizes[name] = page.locator(".results").evaluate("list => list.scrollWidth - list.clientWidth")
    assert sizes == dict.fromkeys(LISTS, 0)


def test_a_page_has_one_visible_title_in_the_admin_of_django(busy, ids, visit):
    page = visit(busy, "root")
    for address in (DASHBOARD, chain_page(ids["failed"]), chain_page(ids["failed"], "retry")):
        page.goto(address)
        expect(page.locator("#content > h1")).to_be_visible()
        expect(page.locator(".jobchains-title")).to_be_hidden()
