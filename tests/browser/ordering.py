"""Customers: they place orders in the shop front."""

import re

from playwright.sync_api import Page, expect


class Ordering:
    """What a customer does on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def place(self, email: str, product: str = "Sencha, 100 g", quantity: int = 1, card: str = "A good card") -> int:
        """Leaves the browser on the order's page, and returns the order's number."""
        self.page.goto("/")
        form = self.page.locator("form[action^='/orders/place']")
        form.get_by_label("Product").select_option(product)
        form.get_by_label("Quantity").fill(str(quantity))
        form.get_by_label("E-mail").fill(email)
        form.get_by_label(card).check()
        form.get_by_role("button", name="Place the order").click()
        expect(self.page).to_have_url(re.compile(r"/orders/\d+/(#order)?$"))
        return int(re.findall(r"\d+", self.page.url)[-1])
