"""Auto-refresh does not disturb the user. The tests control the clock of the page."""

from collections import Counter
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from tests.browser.steps import DASHBOARD, Admin, Customer, chain_page

PART = "**/dashboard/?*fragment=1"
SECONDS = 10
NAME = "Queue name"


@pytest.fixture
def page(busy, visit):
    page = visit(busy, "root", may_answer=(503,))
    page.clock.install()
    page.goto(DASHBOARD)
    return page


def next_response(page, seconds=SECONDS):
    """Return the response of the refresh after this many seconds."""
    with page.expect_response(PART) as answered:
        page.clock.fast_forward(seconds * 1000)
    return answered.value


@contextmanager
def refreshed(page):
    """Wait until the part has been replaced and the next refresh is planned."""
    page.evaluate("document.getElementById('jobchains-dashboard').firstElementChild.dataset.isOld = ''")
    yield
    expect(page.locator("[data-is-old]")).to_have_count(0)


def refreshes(page, seconds=SECONDS):
    with refreshed(page):
        page.clock.fast_forward(seconds * 1000)


def stays(page, seconds=600):
    asked = []
    page.on("request", lambda request: asked.append(request))
    page.clock.fast_forward(seconds * 1000)
    page.wait_for_timeout(200)
    assert not asked


def due(page):
    """Return the figure that is shown now."""
    return int(page.locator(".jobchains-figures div", has_text="due jobs").locator("dd").inner_text())


def expect_message(page, text):
    expect(page.get_by_role("status")).to_have_text(text)


def test_the_dashboard_shows_new_jobs(busy, visit, page):
    before = due(page)
    Customer(visit(busy)).place()
    assert due(page) == before
    refreshes(page)
    figure = page.locator(".jobchains-figures div", has_text="due jobs").locator("dd")
    expect(figure).to_have_text(str(before + 1))
    expect_message(page, "")


def test_the_page_of_an_open_chain_too(busy, visit):
    order, page = Customer(visit(busy)).place(), visit(busy, "root")
    page.clock.install()
    page.goto(chain_page(order.chain_id))
    with page.expect_response("**/change/?fragment=1"):
        page.clock.fast_forward(SECONDS * 1000)
    expect(page.locator("#content")).to_contain_text(order.chain_id)
    expect(page.locator("#content h1")).to_have_count(1)


def test_auto_refresh_ends_with_the_chain(busy, visit):
    order, page, admin = Customer(visit(busy)).place(), visit(busy, "root"), Admin(visit(busy, "root"))
    page.clock.install()
    page.goto(chain_page(order.chain_id))
    admin.page.goto(chain_page(order.chain_id, "cancel"))
    admin.confirm("Cancel chain", "1 chain cancelled")
    page.clock.fast_forward(SECONDS * 1000)
    expect(page.locator("#jobchains-detail .jobchains-status").first).to_have_text("cancelled")
    stays(page)


def test_auto_refresh_is_paused_and_resumed(page):
    page.get_by_role("button", name="Pause auto-refresh").click()
    stays(page)
    with refreshed(page):
        page.get_by_role("button", name="Resume auto-refresh").click()
    refreshes(page)


def test_a_refresh_keeps_open_details_and_the_focus(page):
    page.get_by_text("Pause another queue").click()
    page.get_by_label(NAME).focus()
    refreshes(page)
    expect(page.get_by_label(NAME)).to_be_visible()
    expect(page.get_by_label(NAME)).to_be_focused()


def test_a_refresh_keeps_the_focus_on_one_of_several_links_with_the_same_address(ids, page):
    links = page.locator("#jobchains-dashboard a")
    hrefs = links.evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    [(address, number)] = Counter(href for href in hrefs if "?name=" in href).most_common(1)
    assert number > 1
    links = page.locator(f"#jobchains-dashboard a[href='{address}']")
    for link in (links.first, links.last):
        link.focus()
        refreshes(page)
        expect(link).to_be_focused()


def test_a_refresh_does_not_interrupt_typing(page):
    page.get_by_text("Pause another queue").click()
    page.get_by_label(NAME).fill("half a na")
    next_response(page)
    expect_message(page, "Auto-refresh is paused while you type or select text.")
    expect(page.get_by_label(NAME)).to_have_value("half a na")
    page.get_by_label(NAME).fill("")
    refreshes(page)
    expect_message(page, "")


def test_refresh_backs_off_after_errors(page):
    page.route(PART, lambda route: route.fulfill(status=503, body="too slow"))
    assert next_response(page).status == 503
    expect_message(page, "The page could not be refreshed. Retrying in 20 seconds.")
    stays(page, 15)
    assert next_response(page, 5).status == 503
    expect_message(page, "The page could not be refreshed. Retrying in 40 seconds.")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    page.unroute(PART)
    refreshes(page, 40)
    expect_message(page, "")
    refreshes(page)


def test_after_a_logout_the_page_keeps_its_content_and_shows_a_message(page):
    page.context.clear_cookies()
    assert next_response(page).status == 302
    expect_message(page, "You are logged out, or are no longer allowed to view this page. Auto-refresh has stopped.")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    stays(page)
