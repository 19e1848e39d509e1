"""Fixtures for a browser, for shops, and for pages on which errors are recorded."""

import os
import shutil
import signal
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.shop import Shop, database
from tests.support.servers import CACHE
from tests.support.servers.chromium import chromium

FAILED = CACHE / "browser"
#: The timeout of each action on a page.
PATIENCE_SECONDS = 30
FAILURE = pytest.StashKey[bool]()


def pytest_configure() -> None:
    """Stop the started processes even if ``make`` ends the run."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[FAILURE] = report.failed
    return report


@pytest.fixture(scope="session")
def browser():
    # Chromium cannot use its sandbox when it runs as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver, driver.chromium.launch(executable_path=chromium(), args=arguments) as browser:
        yield browser


@pytest.fixture(scope="session")
def open_shop(tmp_path_factory):
    """``open_shop("flows")`` opens a shop with tables, users and a server. Options are those of ``Shop``."""
    with ExitStack() as stack:

        def opened(name, **options):
            folder = tmp_path_factory.mktemp(name)
            shop = Shop(folder, stack.enter_context(database(name, folder)), **options)
            return stack.enter_context(shop.opened())

        yield opened


@pytest.fixture(scope="session")
def shop(open_shop):
    """The shop for tests that change something, with a worker while a test needs it."""
    return open_shop("flows")


@pytest.fixture(scope="session")
def busy(open_shop):
    """A shop with rows of all kinds and without a worker. Tests only add orders."""
    return open_shop("busy")


@pytest.fixture(scope="session")
def ids(busy):
    """The ids of the rows in the busy shop."""
    return busy.script("scene")


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

        def opened(shop, person=None, may_answer=(), **options):
            context = stack.enter_context(browser.new_context(base_url=shop.url, **options))
            context.set_default_timeout(PATIENCE_SECONDS * 1000)
            if person:
                context.add_cookies([{"name": shop.cookie, "value": shop.sessions[person], "url": shop.url}])
            stack.enter_context(watched(context, shop, may_answer, request.node))
            return context.new_page()

        yield opened


@contextmanager
def watched(context, shop, may_answer, test):
    """Record dialogs, script errors, violations of the Content-Security-Policy and error responses."""
    problems = {}  # each once, in the order in which they occurred

    def on_dialog(dialog):
        problems[f"dialog: {dialog.message}"] = None
        dialog.dismiss()

    def on_console(message):
        expected = any(f"status of {status} " in message.text for status in may_answer)
        # The browser requests the icon although no page links to it.
        is_of_icon = message.location["url"].endswith("/favicon.ico")
        if message.type in ("error", "warning") and not expected and not is_of_icon:
            problems[f"console {message.type}: {message.text} ({message.page and message.page.url})"] = None

    def on_response(response):
        if response.status >= 400 and response.status not in may_answer:
            problems[f"{response.status}: {response.request.method} {response.url}"] = None

    context.on("dialog", on_dialog)
    context.on("weberror", lambda error: problems.update({f"script: {error.error}": None}))
    context.on("console", on_console)
    context.on("response", on_response)
    yield
    if test.stash.get(FAILURE, False) or problems:
        keep(context, shop, "".join(letter if letter.isalnum() else "-" for letter in test.name))
    assert not problems, "\n".join(problems)


def keep(context, shop, name):
    """Save a screenshot and the HTML of each page of a failed test, and the output of the shop."""
    FAILED.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(context.pages):
        page.screenshot(path=FAILED / f"{name}-{number}.png", full_page=True)
        (FAILED / f"{name}-{number}.html").write_text(page.content())
    for log in shop.folder.glob("*.log"):
        shutil.copy(log, FAILED / f"{name}-{log.name}")
