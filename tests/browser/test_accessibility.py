"""The pages follow axe's accessibility rules: in light and dark mode, on a phone, and in another language."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.steps import APP, DASHBOARD, RECORDS, chain_page, job_page, list_of, schedule_page

#: The address of each page, by the ids of the rows that ``scripts.scene`` has created.
PAGES = {
    "dashboard": lambda ids: DASHBOARD,
    "type": lambda ids: f"{DASHBOARD}type/?name=shop.charge",
    "queue": lambda ids: f"{DASHBOARD}queue/?name=orders&range=week",
    "chains": lambda ids: list_of("chain"),
    "jobs": lambda ids: f"{list_of('job')}?status=failed",
    "nothing found": lambda ids: f"{list_of('chain')}?q=nothing",
    "failed chain": lambda ids: chain_page(ids["failed"]),
    "fan-in": lambda ids: chain_page(ids["import"]),
    "job": lambda ids: job_page(ids["part"]),
    "complete": lambda ids: chain_page(ids["approval"], "complete"),
    "complete with an output": lambda ids: chain_page(ids["scheduled"], "complete"),
    "retry": lambda ids: chain_page(ids["failed"], "retry"),
    "reschedule": lambda ids: chain_page(ids["scheduled"], "reschedule"),
    "delete": lambda ids: chain_page(ids["order"], "delete"),
    "limits": lambda ids: f"{APP}limitoverride/",
    "limit": lambda ids: f"{APP}limitoverride/limit/?name=payment+gateway",
    "records": lambda ids: RECORDS,
    "record": lambda ids: f"{RECORDS}{ids['record']}/change/",
    "requeue a record": lambda ids: f"{RECORDS}{ids['record']}/record-requeue/",
    "schedules": lambda ids: list_of("schedule"),
    "schedule": lambda ids: schedule_page("sales-report"),
    "failing schedule": lambda ids: schedule_page("price-check"),
    "add a schedule": lambda ids: f"{list_of('schedule')}add/?type=shop.report_sales",
    "change a schedule": lambda ids: schedule_page("import-prices", "edit"),
    "enqueue": lambda ids: f"{list_of('chain')}enqueue/?type=shop.charge",
}
SCHEMES = ["light", pytest.param("dark", marks=pytest.mark.exhaustive)]
#: German texts are longer than English ones.
LOCALES = ["de-DE", pytest.param("en-GB", marks=pytest.mark.exhaustive)]
LOG_OUT = {"de-DE": "Abmelden", "en-GB": "Log out"}
PHONE = {"width": 360, "height": 740}
#: The rules of WCAG 2.1, levels A and AA.
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
#: Rules that Django's own templates break, and where.
OF_DJANGO = {
    # Links of breadcrumbs differ from the text around them only by their colour.
    "link-in-text-block": ".breadcrumbs a",
}


def violations(page):
    """Return the violated rules, each with the elements that violate it. Axe adds a stylesheet: pass ``bypass_csp``."""
    found = {}
    for rule in Axe().run(page, options=RULES).response["violations"]:
        for selector in (" ".join(node["target"]) for node in rule["nodes"]):
            of_django = OF_DJANGO.get(rule["id"], ":not(*)")
            if not page.locator(selector).evaluate("(node, at) => node.matches(at)", of_django):
                found.setdefault(rule["id"], set()).add(selector)
    return found


@pytest.mark.timeout(240)  # axe takes seconds for each page
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_no_violations(busy, ids, visit, scheme):
    page, found = visit(busy, "root", color_scheme=scheme, bypass_csp=True), {}
    for name, address in PAGES.items():
        page.goto(address(ids))
        found[name] = violations(page)
    assert found == {name: {} for name in PAGES}
    page.evaluate("() => { document.querySelector('#content').innerHTML = '<input>' }")
    assert "label" in violations(page), "axe does not find anything"


@pytest.mark.parametrize("locale", LOCALES)
def test_pages_do_not_scroll_horizontally_on_a_phone(busy, ids, visit, locale):
    page, widths = visit(busy, "root", viewport=PHONE, locale=locale), {}
    for name, address in PAGES.items():
        page.goto(address(ids))
        expect(page.get_by_role("button", name=LOG_OUT[locale])).to_be_visible()
        widths[name] = page.evaluate("document.scrollingElement.scrollWidth")
    assert widths == dict.fromkeys(PAGES, PHONE["width"])
