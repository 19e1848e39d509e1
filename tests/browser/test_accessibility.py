"""Our pages for everybody: by axe's rules, in light and dark, on a phone, in another language."""

from collections.abc import Callable

import pytest

from tests.browser.accessibility import OF_DJANGO, is_of_django, violations, violations_of_ours
from tests.browser.admin import ADMIN, DASHBOARD, chain_page, job_page, list_of
from tests.browser.conftest import Visit
from tests.browser.shop import Shop

Address = Callable[[dict[str, str]], str]
PAGES: dict[str, Address] = {
    "dashboard": lambda ids: DASHBOARD,
    "chains": lambda ids: list_of("chain"),
    "jobs": lambda ids: f"{list_of('job')}?status=failed",
    "nothing found": lambda ids: f"{list_of('chain')}?q=nothing",
    "failed chain": lambda ids: chain_page(ids["failed"]),
    "fan-in": lambda ids: chain_page(ids["import"]),
    "job": lambda ids: job_page(ids["part"]),
    "complete": lambda ids: f"{list_of('chain')}{ids['approval']}/complete/?type=shop.charge",
    "retry": lambda ids: f"{list_of('chain')}{ids['failed']}/retry/",
    "reschedule": lambda ids: f"{list_of('chain')}{ids['scheduled']}/reschedule/",
    "delete": lambda ids: f"{list_of('chain')}{ids['order']}/delete/",
    "enqueue": lambda ids: f"{list_of('chain')}enqueue/?type=shop.charge",
}
PHONE = {"width": 360, "height": 740}
each_page = pytest.mark.parametrize("name", PAGES)


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_page(busy: Shop, ids: dict[str, str], visit: Visit, name: str, scheme: str) -> None:
    page = visit(busy, "root", color_scheme=scheme, bypass_csp=True)
    page.goto(PAGES[name](ids))
    assert violations_of_ours(page) == {}


def test_axe_sees_what_is_wrong(busy: Shop, visit: Visit) -> None:
    page = visit(busy, "root", bypass_csp=True)
    page.goto(ADMIN)
    wrong = "<input><p style='color: #ccc; background: #fff'>pale</p>"
    page.evaluate("markup => { document.querySelector('#content').innerHTML = markup }", wrong)
    assert {"label", "color-contrast"} <= set(violations_of_ours(page))


@pytest.mark.parametrize("rule", OF_DJANGO)
def test_what_is_forgiven_is_wrong_in_the_admin_without_us_too(busy: Shop, visit: Visit, rule: str) -> None:
    page = visit(busy, "root", bypass_csp=True)
    page.goto(f"{ADMIN}auth/")
    assert any(is_of_django(page, rule, selector) for selector in violations(page)[rule])


@each_page
def test_on_a_phone_nothing_has_to_be_moved_sideways(busy: Shop, ids: dict[str, str], visit: Visit, name: str) -> None:
    page = visit(busy, "root", viewport=PHONE)
    page.goto(PAGES[name](ids))
    assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]


@each_page
def test_the_page_is_there_in_german(busy: Shop, ids: dict[str, str], visit: Visit, name: str) -> None:
    page = visit(busy, "root", locale="de-DE")
    page.goto(PAGES[name](ids))
    page.get_by_role("button", name="Abmelden").wait_for()
