"""The shop, and the login to its admin."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import WORK_SECONDS, Customer


@pytest.mark.flow
@pytest.mark.usefixtures("worker")
def test_an_order_is_followed_until_its_chain_has_ended(shop, visit):
    page = visit(shop)
    Customer(page).place()
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


@pytest.mark.flow
@pytest.mark.usefixtures("worker")
def test_a_progress_bar_follows_a_job_and_a_button_cancels_it(shop, visit):
    page = visit(shop)
    page.goto("/stocktaking/")
    page.get_by_role("button", name="Count all products").click()
    panel = page.locator("#stocktaking")
    expect(panel).to_contain_text("counting ", timeout=WORK_SECONDS * 1000)
    expect(panel.get_by_role("progressbar")).not_to_have_js_property("value", 0, timeout=WORK_SECONDS * 1000)
    expect(panel.locator(".badge")).to_have_text("running")
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.locator(".badge")).to_have_text("cancelled", timeout=WORK_SECONDS * 1000)
    expect(panel.get_by_role("button", name="Cancel")).to_be_hidden()


def test_people_log_in_to_the_admin_and_find_the_jobs(shop, visit):
    page = visit(shop)
    page.goto("/admin/")
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill("a long tea leaf")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Chains", exact=True).first.click()
    expect(page).to_have_url(f"{shop.url}/admin/django_jobchains/chain/")
