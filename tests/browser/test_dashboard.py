"""The first screen of the dashboard, its charts, and the ways to it and from it."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import ADMIN, DASHBOARD, list_of
from tests.browser.test_accessibility import SCHEMES

pytestmark = pytest.mark.usefixtures("ids")

SCREEN = {"width": 1400, "height": 900}
LAPTOP = {"width": 1280, "height": 800}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_figures_alerts_and_charts_are_on_the_first_screen(busy, visit, scheme):
    page = visit(busy, "root", viewport=SCREEN, color_scheme=scheme)
    page.goto(DASHBOARD)
    figures, alerts = page.locator(".jobchains-figures > div"), page.locator(".jobchains-alert")
    charts = page.locator(".jobchains-chart")
    expect(figures).to_have_count(7)  # the last one is the database, at the end of the page
    parts = [figures.nth(5), alerts.nth(3), charts.nth(0), charts.nth(1)]
    assert [place["y"] + place["height"] <= SCREEN["height"] for place in map(box, parts)] == [True] * 4
    assert box(charts.nth(0))["y"] == box(charts.nth(1))["y"]


def box(part):
    return part.bounding_box()


@pytest.mark.parametrize("query", ["", "?range=day", "?range=week"])
def test_nothing_is_cut_off_beside_the_sidebar(busy, visit, query):
    page = visit(busy, "root", viewport=LAPTOP, locale="de-DE")
    page.goto(f"{DASHBOARD}{query}")
    expect(page.locator("#nav-sidebar")).to_be_visible()
    content = page.locator("#jobchains-dashboard")
    assert content.evaluate("part => part.scrollWidth - part.clientWidth") == 0
    for part in (*page.locator(".jobchains-plot").all(), *page.locator("table").all()):
        assert box(part)["x"] + box(part)["width"] <= box(content)["x"] + box(content)["width"] + 1


def test_a_bar_has_a_tooltip(busy, visit):
    page = visit(busy, "root", viewport=SCREEN)
    page.goto(DASHBOARD)
    tooltip, bar = page.locator(".jobchains-tooltip"), page.locator(".jobchains-slot").nth(59)
    expect(tooltip).to_be_hidden()
    bar.hover(force=True)
    expect(tooltip).to_contain_text("failed attempts:")
    assert box(tooltip)["y"] < box(bar)["y"]
    page.locator("h1").last.hover()
    expect(tooltip).to_be_hidden()


def test_it_is_found_from_the_index_and_leads_to_types_and_queues(busy, visit):
    page = visit(busy, "root", viewport=SCREEN)
    page.goto(ADMIN)
    page.locator("#content-main").get_by_role("link", name="Dashboard").click()
    expect(page).to_have_url(f"{busy.url}{DASHBOARD}")
    page.get_by_role("link", name="24 hours").click()
    expect(page.locator(".jobchains-slot")).to_have_count(2 * 24)
    page.get_by_role("table").get_by_role("link", name="shop.charge").first.click()
    expect(page.locator("h1").last).to_have_text("Type shop.charge")
    expect(page.get_by_role("row", name="shop.charge").first).to_contain_text("400 ms")
    page.goto(list_of("job"))
    page.locator(".object-tools").get_by_role("link", name="Dashboard").click()
    page.locator("#jobchains-dashboard").get_by_role("link", name="orders", exact=True).first.click()
    expect(page.locator("h1").last).to_have_text("Queue orders")
    page.get_by_role("link", name="All jobs").click()
    expect(page).to_have_url(f"{busy.url}{list_of('job')}?queue=orders")
