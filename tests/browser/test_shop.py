"""The shop, and the browser's checks of its pages."""

import time

import pytest
from playwright.sync_api import expect

from tests.browser.ordering import WORK_SECONDS, Ordering
from tests.browser.watching import Watch

POLICY = "Content Security Policy"


@pytest.mark.flow
@pytest.mark.usefixtures("worker")
def test_an_order_is_followed_until_its_chain_has_ended(shop, visit):
    page = visit(shop)
    Ordering(page).place()
    expect(page.locator("#progress .badge").first).to_have_text("Points credited", timeout=WORK_SECONDS * 1000)


@pytest.mark.flow
@pytest.mark.usefixtures("worker")
def test_labels_are_rendered_although_the_renderer_leaks_crashes_and_hangs(shop, visit):
    page = visit(shop)
    failures = {"Nothing": "", "It leaks": "", "It crashes": "SIGSEGV", "It hangs": "timed out"}
    for trouble in failures:
        page.goto("/labels/")
        page.get_by_label("Recipient").fill(trouble)
        page.get_by_label(trouble).check()
        page.get_by_role("button", name="Render").click()
    for trouble, failure in failures.items():
        label = page.get_by_role("article").filter(has_text=trouble)
        expect(label.locator(".badge")).to_have_text("completed", timeout=WORK_SECONDS * 1000)
        expect(label.get_by_role("img")).to_be_visible()
        expect(label).to_contain_text(failure or "Attempts: 1")


def test_people_log_in_to_the_admin_and_find_the_jobs(shop, visit):
    page = visit(shop)
    page.goto("/admin/")
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill("a long tea leaf")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Chains", exact=True).first.click()
    expect(page).to_have_url(f"{shop.url}/admin/django_jobchains/chain/")


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        (
            "document.head.append(Object.assign(document.createElement('script'), {text: '1'}))",
            "Content Security Policy",
        ),
        ("document.body.setAttribute('style', 'color: red')", POLICY),
        ("setTimeout(() => alert('hello'))", "dialog: hello"),
        ("setTimeout(() => { throw new Error('oh') })", "script: oh"),
        ("fetch('/no-such-page/')", "404: GET"),
    ],
)
def test_the_watch_sees(shop, browser, deed, told):
    with browser.new_context(base_url=shop.url) as context:
        watch = Watch(context)
        page = context.new_page()
        page.goto("/")
        assert not watch.problems
        page.evaluate(f"() => {{ {deed} }}")
        deadline = time.monotonic() + WORK_SECONDS
        while not any(told in problem for problem in watch.problems):
            assert time.monotonic() < deadline, watch.problems
            page.wait_for_timeout(50)  # Playwright reports events while it waits.
