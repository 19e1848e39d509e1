"""Pages that keep themselves up to date take nothing from whoever reads them; time passes here as tests say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, Request, Response, expect

from tests.browser.admin import DASHBOARD, chain_page
from tests.browser.conftest import Visit
from tests.browser.ordering import Ordering
from tests.browser.shop import Shop

PART = "**/job/dashboard/"
SECONDS = 10
NAME = "Name of the queue"


@pytest.fixture(scope="module")
def idle(open_shop: Callable[[str], Shop]) -> Shop:
    """A shop without a worker: what is placed stays due."""
    return open_shop("idle")


@pytest.fixture
def page(idle: Shop, visit: Visit) -> Page:
    page = visit(idle, "root", may_answer=(503,))
    page.clock.install()
    page.goto(DASHBOARD)
    return page


def asks(page: Page, seconds: int = SECONDS) -> Response:
    """After so many seconds, and this is the answer."""
    with page.expect_response(PART) as answered:
        page.clock.fast_forward(seconds * 1000)
    return answered.value


@contextmanager
def refreshed(page: Page) -> Iterator[None]:
    """After it all of the part was replaced, and the next time is planned."""
    page.evaluate("document.getElementById('jobchains-dashboard').firstElementChild.dataset.isOld = ''")
    yield
    expect(page.locator("[data-is-old]")).to_have_count(0)


def refreshes(page: Page, seconds: int = SECONDS) -> None:
    with refreshed(page):
        page.clock.fast_forward(seconds * 1000)


def stays(page: Page, seconds: int = 600) -> None:
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request))
    page.clock.fast_forward(seconds * 1000)
    page.wait_for_timeout(200)
    assert not asked


def due(page: Page) -> int:
    """Of the figure that is shown now."""
    return int(page.locator(".jobchains-figures div", has_text="jobs due").locator("dd").inner_text())


def is_told(page: Page, text: str) -> None:
    expect(page.get_by_role("status")).to_have_text(text)


def test_the_dashboard_shows_what_came_since(idle: Shop, visit: Visit, page: Page) -> None:
    before = due(page)
    Ordering(visit(idle)).place()
    assert due(page) == before
    refreshes(page)
    figure = page.locator(".jobchains-figures div", has_text="jobs due").locator("dd")
    expect(figure).to_have_text(str(before + 1))
    is_told(page, "")


def test_the_page_of_an_open_chain_too(idle: Shop, visit: Visit) -> None:
    order, page = Ordering(visit(idle)).place(), visit(idle, "root")
    page.clock.install()
    page.goto(chain_page(order.chain_id))
    with page.expect_response("**/change/?fragment=1"):
        page.clock.fast_forward(SECONDS * 1000)
    expect(page.locator("#content")).to_contain_text(order.chain_id)
    expect(page.locator("#content h1")).to_have_count(1)


def test_it_is_stopped_and_goes_on(page: Page) -> None:
    page.get_by_role("button", name="Stop refreshing by itself").click()
    stays(page)
    with refreshed(page):
        page.get_by_role("button", name="Refresh by itself again").click()
    refreshes(page)


def test_what_was_opened_stays_open_and_keeps_the_focus(page: Page) -> None:
    page.get_by_text("Pause a queue that is not shown").click()
    page.get_by_label(NAME).focus()
    refreshes(page)
    expect(page.get_by_label(NAME)).to_be_visible()
    expect(page.get_by_label(NAME)).to_be_focused()


def test_nothing_is_taken_from_somebody_who_writes(page: Page) -> None:
    page.get_by_text("Pause a queue that is not shown").click()
    page.get_by_label(NAME).fill("half a na")
    asks(page)
    is_told(page, "Refreshing stands still while you write or select.")
    expect(page.get_by_label(NAME)).to_have_value("half a na")
    page.get_by_label(NAME).fill("")
    refreshes(page)
    is_told(page, "")


def test_after_errors_it_asks_less_and_less_often_until_all_is_well(page: Page) -> None:
    page.route(PART, lambda route: route.fulfill(status=503, body="too slow"))
    assert asks(page).status == 503
    is_told(page, "The page could not be refreshed. It will be tried again in 20 seconds.")
    stays(page, 15)
    assert asks(page, 5).status == 503
    is_told(page, "The page could not be refreshed. It will be tried again in 40 seconds.")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    page.unroute(PART)
    refreshes(page, 40)
    is_told(page, "")
    refreshes(page)


def test_who_is_logged_out_is_told_and_keeps_what_there_is(page: Page) -> None:
    page.context.clear_cookies()
    assert asks(page).status == 302
    is_told(page, "You are no longer logged in, or may no longer see this. The page refreshes itself no more.")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    stays(page)
