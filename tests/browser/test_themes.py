"""The pages with the theme django-unfold, light and dark."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import DASHBOARD, chain_page, list_of
from tests.browser.test_accessibility import PAGES

pytestmark = pytest.mark.exhaustive

#: Returns the ratio between the luminance of an element's text, or of its outline, and of what is behind it.
CONTRAST = """(element, property) => {
  const parts = (color) => {
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([red, green, blue]) => [red, green, blue].map((part) => part / 255)
    .map((part) => part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const colors = [luminance(parts(getComputedStyle(element)[property]))];
  const behind = property === "fill" ? element.parentElement.querySelector("rect") : element;
  for (let part = behind; colors.length < 2; part = part.parentElement) {
    const style = part ? getComputedStyle(part) : null;
    const found = style ? parts(part.tagName === "rect" ? style.fill : style.backgroundColor) : [255, 255, 255, 255];
    if (found[3] === 255) {
      colors.push(luminance(found));
    }
  }
  const [less, more] = colors.sort((one, other) => one - other);
  return (more + 0.05) / (less + 0.05);
}"""


@pytest.fixture(scope="module")
def themed(open_shop):
    return open_shop("themed", settings="tests.browser.unfold")


@pytest.fixture(scope="module")
def themed_ids(themed):
    return themed.script("scene")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_work_with_another_theme(themed, themed_ids, visit, scheme):
    """``visit`` notices errors of scripts and of responses."""
    page = visit(themed, "root", color_scheme=scheme, viewport={"width": 1280, "height": 900})
    for address in PAGES.values():
        page.goto(address(themed_ids))
        expect(page.get_by_role("link", name="Chains").first).to_be_attached()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_with_another_theme(themed, themed_ids, visit, scheme):
    page, found = visit(themed, "root", color_scheme=scheme, viewport={"width": 1280, "height": 900}), {}
    shown = {
        list_of("chain"): [".jobchains-status-failed", ".jobchains-error-line", ".jobchains-cell-note"],
        chain_page(themed_ids["import"]): [".jobchains-button-dangerous", ".jobchains-step .jobchains-summary"],
        chain_page(themed_ids["failed"]): [".jobchains-button-primary", ".jobchains-button-secondary", "pre"],
        chain_page(themed_ids["failed"], "retry"): [".jobchains-submit-row input", ".jobchains-submit-row a"],
        chain_page(themed_ids["failed"], "delete"): [".jobchains-submit-row .jobchains-dangerous"],
    }
    for address, selectors in shown.items():
        page.goto(address)
        for selector in selectors:
            found[selector] = page.locator(selector).first.evaluate(CONTRAST, "color")
    page.goto(chain_page(themed_ids["import"]))
    found["graph"] = page.locator(".jobchains-box text").first.evaluate(CONTRAST, "fill")
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}


def test_titles_and_fields_can_be_seen_with_another_theme(themed, themed_ids, visit):
    """The theme has neither Django's headings nor its styles of fields, and ours do not replace Django's."""
    page = visit(themed, "root")
    titles = {f"{DASHBOARD}queue/?name=letters": "Queue letters", chain_page(themed_ids["failed"], "retry"): "Retry"}
    for address, title in titles.items():
        page.goto(address)
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    page.goto(f"{list_of('schedule')}add/?type=shop.report_sales")
    fields = page.locator("#content-main").locator("input:visible:not([type=submit]), select, textarea").all()
    borders = {field.evaluate("field => getComputedStyle(field).borderWidth") for field in fields}
    assert borders == {"1px"}
    page.goto(f"{DASHBOARD}queue/?name=letters")
    hidden = page.get_by_role("button", name="Resume letters").locator(".visually-hidden")
    assert hidden.evaluate("part => part.offsetWidth") == 1
