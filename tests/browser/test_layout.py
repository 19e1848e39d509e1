"""The lists fit into the page, with the sidebar and the filters beside them, and pages have one title."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import DASHBOARD, RECORDS, chain_page, list_of
from tests.browser.test_accessibility import LOCALES, PHONE

LISTS = {"chains": list_of("chain"), "jobs": list_of("job"), "schedules": list_of("schedule"), "records": RECORDS}

#: Turns a page of Django 5.2 into one of 6.1: the title is in an element, links are underlined, and only breadcrumbs
#: that are an <ol> have a bar.
AS_IN_DJANGO_6_1 = """() => {
  const title = document.querySelector("#content > h1");
  const titles = document.createElement("div");
  titles.className = "titles-and-tools";
  title.replaceWith(titles);
  titles.append(title);
  for (const sheet of document.styleSheets) {
    if (sheet.href.includes("/admin/css/")) {
      for (let place = sheet.cssRules.length - 1; place >= 0; place--) {
        if (sheet.cssRules[place].selectorText?.startsWith("div.breadcrumbs")) sheet.deleteRule(place);
      }
    }
  }
  const links = "a:not([role='button'], #header a, #nav-sidebar a, .object-tools a)";
  const added = new CSSStyleSheet();
  added.replaceSync(`${links} { text-decoration: underline; }`);
  document.adoptedStyleSheets = [added];
}"""


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


def test_pages_look_the_same_in_the_admin_of_django_6_1(busy, ids, visit):
    page = visit(busy, "root")
    for address in (DASHBOARD, chain_page(ids["failed"]), chain_page(ids["failed"], "retry")):
        page.goto(address)
        before = look_of(page)
        page.evaluate(AS_IN_DJANGO_6_1)
        expect(page.locator("#content h1")).to_be_visible()
        expect(page.locator(".jobchains-title")).to_be_hidden()
        assert look_of(page) == before


def look_of(page):
    """Return the colors of the bar with the breadcrumbs, and the lines below the buttons of actions."""
    bar = "part => [getComputedStyle(part).backgroundColor, getComputedStyle(part).padding]"
    color, line = ("part => getComputedStyle(part).color", "part => getComputedStyle(part).textDecorationLine")
    buttons = page.locator("a:is(.jobchains-button, .jobchains-ranges a, .closelink)").all()
    return (
        page.locator("div.breadcrumbs").evaluate(bar),
        page.locator("div.breadcrumbs a").first.evaluate(color),
        [button.evaluate(line) for button in buttons],
    )
