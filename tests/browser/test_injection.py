"""Rows whose every text is an attack are shown as text, on every page."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.admin import ADMIN, chain_page, job_page, list_of
from tests.browser.conftest import Visit
from tests.browser.shop import Shop
from tests.browser.vectors import VECTORS

#: What would be there if a text had become markup. Scripts of ours have a source, and no element a handler of its own.
HARM = """
() => {
    const harm = window.harmed ? ["a script ran"] : [];
    for (const node of document.querySelectorAll("*")) {
        const say = why => harm.push(`${why}: ${node.outerHTML.slice(0, 200)}`);
        if (node.dataset && "hit" in node.dataset) say("injected");
        if (["BASE", "EMBED", "IFRAME", "OBJECT", "STYLE"].includes(node.tagName)) say("unexpected");
        if (node.tagName === "META" && node.httpEquiv) say("unexpected");
        if (node.tagName === "SCRIPT" && !node.src && node.type !== "application/json") say("inline");
        for (const {name, value} of node.attributes) {
            if (name.startsWith("on") || name === "style") say(name);
            const leads = ["href", "src", "action", "formaction", "xlink:href", "poster", "data"].includes(name);
            if (leads && !["http:", "https:"].includes(new URL(value, document.baseURI).protocol)) say(name);
        }
    }
    return harm;
}
"""
Written = dict[str, str]
#: What the vectors call.
DEFENCELESS = "window.__hit = () => { window.harmed = true; }"


@pytest.fixture(scope="module")
def hostile(open_shop: Callable[[str], Shop]) -> Shop:
    return open_shop("hostile")


@pytest.fixture(scope="module")
def rows(hostile: Shop) -> list[Written]:
    """For each vector the ids of a chain that failed, of one that runs, and of the failed job."""
    written: list[Written] = hostile.script("hostile")
    return written


@pytest.fixture
def page(hostile: Shop, visit: Visit) -> Page:
    page = visit(hostile, "root")
    page.add_init_script(DEFENCELESS)
    return page


def assert_harmless(page: Page, address: str, shows: str = "") -> None:
    page.goto(address)
    assert page.evaluate(HARM) == [], f"{address} shows {shows}"


SEEN = ("<b data-hit>", "<img onerror=x>", "<b style=''>", "<a href='javascript:1'>x</a>", "<iframe></iframe>")


@pytest.mark.parametrize("markup", SEEN)
def test_the_look_for_harm_sees(hostile: Shop, browser: Browser, markup: str) -> None:
    with browser.new_page(base_url=hostile.url) as page:
        assert_harmless(page, "/")
        page.evaluate("markup => { document.querySelector('main').innerHTML = markup }", markup)
        assert page.evaluate(HARM) != []


@pytest.mark.parametrize("which", ["failed", "running"])
def test_the_page_of_a_chain_that(page: Page, rows: list[Written], which: str) -> None:
    for vector, of_vector in zip(VECTORS, rows, strict=True):
        assert_harmless(page, chain_page(of_vector[which]), vector)


def test_the_page_of_a_job(page: Page, rows: list[Written]) -> None:
    for vector, of_vector in zip(VECTORS, rows, strict=True):
        assert_harmless(page, job_page(of_vector["job"]), vector)


@pytest.mark.usefixtures("rows")
def test_lists_and_the_dashboard_show_all_of_them(page: Page) -> None:
    for address in (ADMIN, f"{ADMIN}django_jobchains/", list_of("chain"), list_of("job")):
        assert_harmless(page, address)


def test_what_is_searched_for_is_shown_as_text(page: Page) -> None:
    for vector in VECTORS[::4]:
        assert_harmless(page, f"{list_of('chain')}?q={quote(vector)}", vector)
