"""The steps of a user in the admin, and the paths of its pages."""

import re
import time

from playwright.sync_api import Locator, Page, expect

ADMIN = "/admin/"
DASHBOARD = f"{ADMIN}django_jobchains/"
LOOK_SECONDS = 0.3


def list_of(model: str) -> str:
    return f"{DASHBOARD}{model}/"


def chain_page(id_: str) -> str:
    return f"{list_of('chain')}{id_}/change/"


def job_page(id_: str) -> str:
    return f"{list_of('job')}{id_}/change/"


RECORDS = f"{ADMIN}shop/supplierimport/"


class Admin:
    def __init__(self, page: Page) -> None:
        self.page = page

    def search(self, text: str) -> Locator:
        """Search the list of chains, and return the rows."""
        self.page.goto(list_of("chain"))
        self.page.locator("#searchbar").fill(text)
        self.page.locator("#searchbar").press("Enter")
        expect(self.page).to_have_url(re.compile("q="))
        return self.page.locator("#result_list tbody tr")

    def find(self, text: str) -> str:
        """Open the page of the only chain that a search finds, and return its id."""
        rows = self.search(text)
        expect(rows).to_have_count(1)
        rows.locator("th a, td a").first.click()
        expect(self.page).to_have_url(re.compile("/chain/.*/change/"))
        return self.page.url.split("/")[-3]

    def choose(self, verb: str) -> None:
        """Follow the button of an action to its confirmation page."""
        self.button(verb).first.click()
        expect(self.page.get_by_role("link", name="No, go back")).to_be_visible()

    def button(self, verb: str) -> Locator:
        return self.page.locator(".jobchains-buttons").get_by_role("link", name=verb, exact=True)

    def confirm(self, verb: str, message: str) -> None:
        self.page.get_by_role("button", name=verb, exact=True).click()
        self.expect_message(message)

    def expect_message(self, message: str) -> None:
        expect(self.page.locator(".messagelist")).to_contain_text(message)

    def tick_all(self, action: str) -> None:
        """Select all rows of a list one by one, and submit an action."""
        for box in self.page.locator("#result_list tbody input[name=_selected_action]").all():
            box.check()
        self.page.get_by_label("Action:").select_option(label=action)
        self.page.get_by_role("button", name=re.compile("^Go$|^Run$")).click()


def eventually(page: Page, shown: Locator, text: str, seconds: float) -> None:
    """Reload the page until the element has the text, which also works without scripts."""
    deadline = time.monotonic() + seconds
    while text not in shown.inner_text():
        assert time.monotonic() < deadline, f"Not within {seconds} s: {text!r}, but {shown.inner_text()!r}"
        page.wait_for_timeout(LOOK_SECONDS * 1000)
        page.reload()
