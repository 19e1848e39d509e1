"""Runs axe on a page, with the rules of WCAG 2.1, levels A and AA."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
#: Rules that Django's own templates break, and where. A test checks on a page of Django that they still do.
OF_DJANGO = {
    # Links of breadcrumbs differ from the text around them only by their colour.
    "link-in-text-block": ".breadcrumbs a",
}
IS_AT = "(node, at) => node.matches(at)"


def violations(page: Page) -> dict[str, set[str]]:
    """Return the names of the violated rules, each with the selectors of the elements that violate it.

    The page's context needs ``bypass_csp``, because axe adds a stylesheet.
    """
    found: list[dict[str, Any]] = Axe().run(page, options=RULES).response["violations"]
    return {rule["id"]: {" ".join(node["target"]) for node in rule["nodes"]} for rule in found}


def is_of_django(page: Page, rule: str, selector: str) -> bool:
    return rule in OF_DJANGO and bool(
        page.locator(selector).evaluate("(node, at) => node.matches(at)", OF_DJANGO[rule])
    )


def violations_of_ours(page: Page) -> dict[str, set[str]]:
    ours = {
        rule: {selector for selector in selectors if not is_of_django(page, rule, selector)}
        for rule, selectors in violations(page).items()
    }
    return {rule: selectors for rule, selectors in ours.items() if selectors}
