"""axe over a page: rules of WCAG 2.1, levels A and AA."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}


def violations(page: Page) -> dict[str, set[str]]:
    """The names of the rules, and the markup of what breaks them."""
    found: list[dict[str, Any]] = Axe().run(page, options=RULES).response["violations"]
    return {rule["id"]: {node["html"] for node in rule["nodes"]} for rule in found}
