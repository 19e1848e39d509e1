"""The pages follow axe's accessibility rules: in light and dark mode, on a phone, and in another language."""

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import OF_DJANGO, is_of_django, violations, violations_of_ours
from tests.browser.admin import ADMIN, DASHBOARD, RECORDS, chain_page, job_page, list_of

Address = Callable[[dict[str, str]], str]
PAGES: dict[str, Address] = {
    "dashboard": lambda ids: DASHBOARD,
    "chains": lambda ids: list_of("chain"),
    "jobs": lambda ids: f"{list_of('job')}?status=failed",
    "nothing found": lambda ids: f"{list_of('chain')}?q=nothing",
    "failed chain": lambda ids: chain_page(ids["failed"]),
    "fan-in": lambda ids: chain_page(ids["import"]),
    "job": lambda ids: job_page(ids["part"]),
    "complete": lambda ids: f"{list_of('chain')}{ids['approval']}/complete/",
    "complete with an output": lambda ids: f"{list_of('chain')}{ids['scheduled']}/complete/",
    "retry": lambda ids: f"{list_of('chain')}{ids['failed']}/retry/",
    "reschedule": lambda ids: f"{list_of('chain')}{ids['scheduled']}/reschedule/",
    "delete": lambda ids: f"{list_of('chain')}{ids['order']}/delete/",
    "records": lambda ids: RECORDS,
    "record": lambda ids: f"{RECORDS}{ids['record']}/change/",
    "requeue a record": lambda ids: f"{RECORDS}{ids['record']}/record-requeue/",
    "enqueue": lambda ids: f"{list_of('chain')}enqueue/?type=shop.charge",
}
PHONE = {"width": 360, "height": 740}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violations(busy, ids, visit, scheme):
    page = visit(busy, "root", color_scheme=scheme, bypass_csp=True)
    found = {}
    for name, address in PAGES.items():
        page.goto(address(ids))
        found[name] = violations_of_ours(page)
    assert found == {name: {} for name in PAGES}


def test_axe_finds_violations(busy, visit):
    page = visit(busy, "root", bypass_csp=True)
    page.goto(ADMIN)
    wrong = "<input><p style='color: #ccc; background: #fff'>pale</p>"
    page.evaluate("markup => { document.querySelector('#content').innerHTML = markup }", wrong)
    assert {"label", "color-contrast"} <= set(violations_of_ours(page))


@pytest.mark.parametrize("rule", OF_DJANGO)
def test_accepted_violations_are_those_of_djangos_admin(busy, visit, rule):
    page = visit(busy, "root", bypass_csp=True)
    page.goto(f"{ADMIN}auth/")
    assert any(is_of_django(page, rule, selector) for selector in violations(page)[rule])


@pytest.mark.parametrize(("locale", "log_out"), [("en-GB", "Log out"), ("de-DE", "Abmelden")])
def test_pages_do_not_scroll_horizontally_on_a_phone(busy, ids, visit, locale, log_out):
    page = visit(busy, "root", viewport=PHONE, locale=locale)
    widths = {}
    for name, address in PAGES.items():
        page.goto(address(ids))
        expect(page.get_by_role("button", name=log_out)).to_be_visible()
        widths[name] = page.evaluate("document.scrollingElement.scrollWidth")
    assert widths == dict.fromkeys(PAGES, PHONE["width"])
