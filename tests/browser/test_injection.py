"""Hostile texts in all columns of rows are escaped on every page."""

from itertools import cycle
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.steps import ADMIN, DASHBOARD, RECORDS, Admin, chain_page, job_page, list_of
from tests.support.hostile_texts import VECTORS

#: Finds what a text could have added as markup: on our pages, scripts have a source, no element has a handler or a
#: style, and no URL leads to another site. If a script in a text runs, it opens a dialog, which ``watched`` records.
HARM = """
() => {
    const harm = [];
    for (const node of document.querySelectorAll("*")) {
        const say = why => harm.push(`${why}: ${node.outerHTML.slice(0, 200)}`);
        if (["b", "base", "embed", "iframe", "math", "object", "style"].includes(node.localName)) say("tag");
        if (node.tagName === "META" && node.httpEquiv) say("meta");
        if (node.tagName === "SCRIPT" && !node.src && node.type !== "application/json") say("inline");
        for (const {name, value} of node.attributes) {
            if (name.startsWith("on") || name === "style") say(name);
            const leads = ["href", "src", "action", "formaction", "xlink:href", "poster", "data"].includes(name);
            if (leads && new URL(value, document.baseURI).origin !== location.origin) say(name);
        }
    }
    return harm;
}
"""
#: The page of each kind of row that ``scripts.hostile`` creates for a text.
PAGES = {
    "failed chain": lambda ids: chain_page(ids["failed"]),
    "running chain": lambda ids: chain_page(ids["running"]),
    "completed chain": lambda ids: chain_page(ids["completed"]),
    "job": lambda ids: job_page(ids["job"]),
    "record": lambda ids: f"{RECORDS}{ids['record']}/change/",
    "record in a state that is the text": lambda ids: f"{RECORDS}{ids['other_record']}/change/",
    "complete": lambda ids: chain_page(ids["running"], "complete"),
    "retry": lambda ids: chain_page(ids["failed"], "retry"),
    "delete": lambda ids: chain_page(ids["completed"], "delete"),
}


#: Texts that end an attribute in either kind of quotes, or are an address.
ATTRIBUTES = ('"><script>alert(1)</script>', "'><script>alert(1)</script>", "javascript:alert(1)")


@pytest.fixture(scope="module")
def hostile(open_shop):
    return open_shop("hostile")


@pytest.fixture(scope="module")
def rows(hostile):
    return hostile.script("hostile")


@pytest.fixture
def page(hostile, visit):
    return visit(hostile, "root")


def assert_harmless(page, address, shows=""):
    page.goto(address)
    assert page.evaluate(HARM) == [], f"{address} shows {shows}"


def test_pages_of_rows(page, rows):
    """Each page shows some of the texts: ``tests/admin/test_every_page.py`` reads the markup of all pages."""
    pages = cycle(PAGES.values())
    for vector, ids in zip(VECTORS, rows, strict=True):
        assert_harmless(page, next(pages)(ids), vector)


@pytest.mark.exhaustive
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PAGES)
def test_each_page_shows_each_text(page, rows, name):
    for vector, ids in zip(VECTORS, rows, strict=True):
        assert_harmless(page, PAGES[name](ids), vector)


@pytest.mark.usefixtures("rows")
def test_lists_and_the_dashboard(page):
    for address in (ADMIN, DASHBOARD, list_of("chain"), list_of("job"), RECORDS):
        assert_harmless(page, address)
    for vector in ATTRIBUTES:
        assert_harmless(page, f"{list_of('chain')}?q={quote(vector)}", vector)


@pytest.mark.parametrize(
    ("address", "shown"),
    [(f"{list_of('chain')}?status=failed", "{failed}"), (f"{RECORDS}?record_state=failed", "({record})")],
)
def test_the_confirmation_page_for_all_of_them(page, rows, address, shown):
    page.goto(address)
    Admin(page).tick_all("Retry")
    for ids in rows:
        expect(page.locator("#content")).to_contain_text(shown.format(**ids))
    assert page.evaluate(HARM) == []


def test_what_is_typed_into_forms_is_shown_as_text(page):
    for vector in ATTRIBUTES:
        page.goto(f"{list_of('chain')}enqueue/?type=shop.count_stock")
        for label in ("Product ids", "Deduplication key", "Queue"):
            page.get_by_label(label).fill(vector[:100])
        Admin(page).press("Enqueue")
        expect(page.locator(".errorlist").first).to_be_visible()
        assert page.evaluate(HARM) == [], vector
