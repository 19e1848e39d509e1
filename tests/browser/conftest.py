"""Fixtures for a browser, for shops, and for pages on which errors are recorded."""

import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from tests.browser.databases import database
from tests.browser.shop import Shop
from tests.browser.watching import Watch
from tests.support.servers import CACHE
from tests.support.servers.chromium import chromium

FAILED = CACHE / "browser"
#: The timeout of each action on a page.
PATIENCE_SECONDS = 30

Visit = Callable[..., Page]


def pytest_configure() -> None:
    """Stop the started processes even if ``make`` ends the run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call":
        item.stash[FAILURE] = report.failed
    return report


FAILURE = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def browser():
    # Chromium cannot use its sandbox when it runs as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver, driver.chromium.launch(executable_path=chromium(), args=arguments) as browser:
        yield browser


@pytest.fixture(scope="session")
def open_shop(tmp_path_factory):
    """``open_shop("flows")`` opens a shop with tables, users and a server."""
    with ExitStack() as stack:

        def opened(name: str) -> Shop:
            folder = tmp_path_factory.mktemp(name)
            return stack.enter_context(Shop(folder, stack.enter_context(database(name, folder))).opened())

        yield opened


@pytest.fixture(scope="session")
def shop(open_shop):
    """The shop for tests that change something, with a worker while a test needs it."""
    return open_shop("flows")


@pytest.fixture(scope="session")
def busy(open_shop):
    """A shop with rows of all kinds, which tests do not change."""
    return open_shop("busy")


@pytest.fixture(scope="session")
def ids(busy):
    """The ids of the rows in the busy shop."""
    known: dict[str, str] = busy.script("scene")
    return known


@pytest.fixture(scope="module")
def worker(shop):
    with shop.worker():
        yield


@pytest.fixture
def visit(browser, request):
    """``visit(shop, "root")`` opens an empty page for a user. Other options are Playwright's for a context.

    Every problem on the page fails the test, except responses with the error codes in ``may_answer``.
    """
    with ExitStack() as stack:

        def opened(shop: Shop, person: str | None = None, may_answer: Collection[int] = (), **options: Any) -> Page:
            context = stack.enter_context(browser.new_context(base_url=shop.url, **options))
            context.set_default_timeout(PATIENCE_SECONDS * 1000)
            if person:
                context.add_cookies([{"name": shop.cookie, "value": shop.sessions[person], "url": shop.url}])
            stack.enter_context(watched(context, shop, may_answer, request.node))
            return context.new_page()

        yield opened


@contextmanager
def watched(context: BrowserContext, shop: Shop, may_answer: Collection[int], test: pytest.Item) -> Iterator[None]:
    watch = Watch(context, may_answer)
    yield
    if test.stash.get(FAILURE, False) or watch.problems:
        keep(context, shop, "".join(letter if letter.isalnum() else "-" for letter in test.name))
    assert not watch.problems, "\n".join(watch.problems)


def keep(context: BrowserContext, shop: Shop, name: str) -> None:
    """Save a screenshot and the HTML of each page of a failed test, and the output of the shop."""
    FAILED.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(context.pages):
        page.screenshot(path=FAILED / f"{name}-{number}.png", full_page=True)
        (FAILED / f"{name}-{number}.html").write_text(page.content())
    for log in shop.folder.glob("*.log"):
        shutil.copy(log, FAILED / f"{name}-{log.name}")
