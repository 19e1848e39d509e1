"""Hostile texts in all columns of rows are escaped on every page."""

from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.admin import ADMIN, RECORDS, Admin, chain_page, job_page, list_of
from tests.support.hostile_texts import VECTORS

#: Finds what a text could have added as markup: on our pages, scripts have a source, no element has a handler or a
#: style, and no URL leads to another site. If a script in a text runs, it opens a dialog, which ``Watch`` records.
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
#: For each text, the ids of the rows that contain it: a failed, a running and a completed chain, the failed job, a
#: failed record, and a record whose state is the text.
Written = dict[str, str]


@pytest.fixture(scope="module")
def hostile(open_shop):
    return open_shop("hostile")


@pytest.fixture(scope="module")
def rows(hostile):
    written: list[Written] = hostile.script("hostile")
    return written


@pytest.fixture
def page(hostile, visit):
    return visit(hostile, "root")


def assert_harmless(page: Page, address: str, shows: str = "") -> None:
    page.goto(address)
    assert page.evaluate(HARM) == [], f"{address} shows {shows}"


SEEN = (
    "<b>x</b>",
    "<img onerror=x>",
    "<p style=''>",
    "<a href='javascript:1'>x</a>",
    "<form action=//x.example></form>",
)


@pytest.mark.parametrize("markup", SEEN)
def test_the_look_for_harm_sees(hostile, browser, markup):
    with browser.new_page(base_url=hostile.url) as page:
        assert_harmless(page, "/")
        page.evaluate("markup => { document.querySelector('main').innerHTML = markup }", markup)
        assert page.evaluate(HARM) != []


@pytest.mark.parametrize("which", ["failed", "running", "completed"])
def test_the_page_of_a_chain_that(page, rows, which):
    for vector, of_vector in zip(VECTORS, rows, strict=True):
        assert_harmless(page, chain_page(of_vector[which]), vector)


def test_the_page_of_a_job(page, rows):
    for vector, of_vector in zip(VECTORS, rows, strict=True):
        assert_harmless(page, job_page(of_vector["job"]), vector)


@pytest.mark.parametrize("which", ["record", "other_record"])
def test_the_page_of_a_record(page, rows, which):
    for vector, of_vector in zip(VECTORS, rows, strict=True):
        assert_harmless(page, f"{RECORDS}{of_vector[which]}/change/", vector)


@pytest.mark.parametrize(("which", "verb"), [("running", "complete"), ("failed", "retry"), ("completed", "delete")])
def test_the_page_that_asks_before(page, rows, which, verb):
    for vector, of_vector in zip(VECTORS, rows, strict=True):
        assert_harmless(page, f"{list_of('chain')}{of_vector[which]}/{verb}/", vector)


@pytest.mark.parametrize(
    ("address", "shown"),
    [(f"{list_of('chain')}?status=failed", "{failed}"), (f"{RECORDS}?record_state=failed", "({record})")],
)
def test_the_confirmation_page_for_all_of_them(page, rows, address, shown):
    admin = Admin(page)
    page.goto(address)
    admin.tick_all("Retry")
    for of_vector in rows:
        expect(page.locator("#content")).to_contain_text(shown.format(**of_vector))
    assert page.evaluate(HARM) == []


@pytest.mark.usefixtures("rows")
def test_lists_and_the_dashboard_show_all_of_them(page):
    for address in (ADMIN, f"{ADMIN}django_jobchains/", list_of("chain"), list_of("job"), RECORDS):
        assert_harmless(page, address)


def test_what_is_searched_for_is_shown_as_text(page):
    for vector in VECTORS[::4]:
        assert_harmless(page, f"{list_of('chain')}?q={quote(vector)}", vector)


def test_what_is_typed_into_forms_is_shown_as_text(page):
    for vector in VECTORS:
        page.goto(f"{list_of('chain')}enqueue/?type=shop.count_stock")
        page.get_by_label("Product ids").fill(vector)
        page.get_by_label("Deduplication key").fill(vector)
        page.get_by_label("Queue").fill(vector[:100])
        page.get_by_role("button", name="Enqueue").click()
        expect(page.locator(".errorlist").first).to_be_visible()
        assert page.evaluate(HARM) == [], vector
