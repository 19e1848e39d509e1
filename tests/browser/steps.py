"""The steps of users in the admin and of customers in the shop, and the paths of pages."""

import re
import time
from dataclasses import dataclass

from playwright.sync_api import expect

ADMIN = "/admin/"
APP = f"{ADMIN}django_jobchains/"
DASHBOARD = f"{APP}dashboard/"
RECORDS = f"{ADMIN}shop/supplierimport/"
GOOD = "A good card"
DECLINED = "A card that is declined"
#: The timeout of everything that waits for a worker.
WORK_SECONDS = 60


def list_of(model):
    return f"{APP}{model}/"


def chain_page(id_, name="change"):
    return f"{list_of('chain')}{id_}/{name}/"


def schedule_page(name, page="change"):
    return f"{list_of('schedule')}{name}/{page}/"


def job_page(id_):
    return f"{list_of('job')}{id_}/change/"


def eventually(page, shown, text):
    """Reload the page until the element has the text, which also works without scripts."""
    deadline = time.monotonic() + WORK_SECONDS
    while text not in shown.inner_text():
        assert time.monotonic() < deadline, f"Not within {WORK_SECONDS} s: {text!r}, but {shown.inner_text()!r}"
        page.wait_for_timeout(300)
        page.reload()


class Admin:
    def __init__(self, page):
        self.page = page

    def search(self, text):
        """Search the list of chains, and return the rows."""
        self.page.goto(list_of("chain"))
        self.page.locator("#searchbar").fill(text)
        self.page.locator("#searchbar").press("Enter")
        expect(self.page).to_have_url(re.compile("q="))
        return self.page.locator("#result_list tbody tr")

    def find(self, text):
        """Open the page of the only chain that a search finds."""
        rows = self.search(text)
        expect(rows).to_have_count(1)
        rows.locator("th a, td a").first.click()
        expect(self.page).to_have_url(re.compile("/chain/.*/change/"))

    def choose(self, verb):
        """Follow the button of an action to its confirmation page."""
        buttons = self.page.locator(".jobchains-buttons")
        buttons.get_by_role("link", name=verb, exact=True).first.click()
        expect(self.page.get_by_role("link", name="No, go back")).to_be_visible()

    def press(self, name):
        self.page.get_by_role("button", name=name, exact=True).click()

    def confirm(self, verb, message):
        self.press(verb)
        self.expect_message(message)

    def expect_message(self, message):
        expect(self.page.locator(".messagelist")).to_contain_text(message)

    def tick_all(self, action):
        """Select all rows of a list one by one, and submit an action."""
        for box in self.page.locator("#result_list tbody input[name=_selected_action]").all():
            box.check()
        self.page.get_by_label("Action:").select_option(label=action)
        self.page.get_by_role("button", name=re.compile("^Go$|^Run$")).click()

    def expect_status(self, text):
        eventually(self.page, self.page.locator(".jobchains-status").first, text)


@dataclass(frozen=True)
class Placed:
    number: int
    chain_id: str


class Customer:
    """Places orders in the shop and follows their progress."""

    def __init__(self, page):
        self.page = page

    def place(self, product="Sencha, 100 g", quantity=1, card=GOOD):
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

    def comes_to(self, order, state):
        self.page.goto(f"/orders/{order.number}/")
        eventually(self.page, self.page.locator("#progress .badge").first, state)
