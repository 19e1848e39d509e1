"""Customers, who place orders in the shop and follow their progress."""

import re
from dataclasses import dataclass

from playwright.sync_api import Page, expect

from tests.browser.admin import eventually

GOOD = "A good card"
DECLINED = "A card that is declined"
#: The timeout of everything that waits for a worker.
WORK_SECONDS = 60


@dataclass(frozen=True)
class Placed:
    number: int
    chain_id: str

    @property
    def address(self) -> str:
        return f"/orders/{self.number}/"


class Ordering:
    """The steps of a customer on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def place(self, product: str = "Sencha, 100 g", quantity: int = 1, card: str = GOOD) -> Placed:
        """Place an order, whose page is open afterwards."""
        self.page.goto("/")
        form = self.page.locator("form[action^='/orders/place']")
        form.get_by_label("Product").select_option(product)
        form.get_by_label("Quantity").fill(str(quantity))
        form.get_by_label("E-mail").fill("ada@example.com")
        form.get_by_label(card).check()
        form.get_by_role("button", name="Place the order").click()
        expect(self.page).to_have_url(re.compile(r"/orders/\d+/(#order)?$"))
        chain = self.page.get_by_role("heading", name="The chain").locator("code")
        return Placed(int(re.findall(r"\d+", self.page.url)[-1]), chain.inner_text())

    def comes_to(self, order: Placed, state: str) -> None:
        self.page.goto(order.address)
        eventually(self.page, self.page.locator("#progress .badge").first, state, WORK_SECONDS)
