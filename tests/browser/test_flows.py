"""Typical tasks in the shop and in the admin, with scripts and without."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import (
    DASHBOARD,
    DECLINED,
    RECORDS,
    WORK_SECONDS,
    Admin,
    Customer,
    chain_page,
    eventually,
    list_of,
)

pytestmark = [pytest.mark.flow, pytest.mark.usefixtures("worker")]


def with_and_without_scripts(*marks):
    """Run a flow with scripts, and without them if a run includes tests with these marks."""
    without = pytest.param(False, marks=(pytest.mark.without_scripts, *marks))
    return pytest.mark.parametrize("scripts", [True, without], ids=["scripts", "no scripts"])


STATUS = ".jobchains-status"


@with_and_without_scripts(pytest.mark.exhaustive)
def test_an_expensive_order_is_approved(shop, visit, scripts):
    page = visit(shop, "root", java_script_enabled=scripts)
    customer, admin = Customer(page), Admin(page)
    order = customer.place("Stoneware cup", 14)
    customer.comes_to(order, "Awaiting approval")
    admin.find(order.chain_id)
    admin.choose("Complete")
    page.get_by_label("Reject").check()
    admin.press("Complete")
    expect(page.locator(".errorlist")).to_contain_text("Tell the customer why.")
    page.get_by_label("Approve").check()
    admin.confirm("Complete", "1 job completed.")
    customer.comes_to(order, "Points credited")


@with_and_without_scripts()
def test_a_job_is_completed_with_the_input_of_the_next_one(shop, visit, scripts):
    page = visit(shop, "root", java_script_enabled=scripts)
    customer, admin = Customer(page), Admin(page)
    order = customer.place("Stoneware cup", 14)
    enqueue_for_later(page)
    admin.choose("Complete")
    page.get_by_label("Continue with").select_option("shop.charge")
    page.get_by_role("button", name="Choose").click()
    page.get_by_role("button", name="Complete and continue with shop.charge").click()
    expect(page.locator(".errorlist")).to_contain_text("This field is required.")
    page.get_by_label("Order id").fill(str(order.number))
    admin.confirm("Complete and continue with shop.charge", "1 job completed.")
    customer.comes_to(order, "Points credited")


@with_and_without_scripts(pytest.mark.exhaustive)
def test_a_declined_order_gets_a_good_card_and_is_retried(shop, visit, scripts):
    page = visit(shop, "root", java_script_enabled=scripts)
    customer, admin = Customer(page), Admin(page)
    order = customer.place(card=DECLINED)
    customer.comes_to(order, "Card declined")
    page.goto(f"/admin/shop/order/{order.number}/change/")
    page.get_by_label("Card").select_option("good")
    admin.press("Save")
    admin.find(order.chain_id)
    expect(page.locator(STATUS).first).to_have_text("failed")
    admin.choose("Retry")
    admin.confirm("Retry", "1 job retried.")
    customer.comes_to(order, "Points credited")


def test_a_running_job_is_cancelled(shop, visit):
    page = visit(shop, "root")
    admin = Admin(page)
    page.goto("/admin/shop/product/")
    admin.tick_all("Count the selected products")
    admin.expect_message("products are being counted")
    admin.find("shop.count_stock")
    admin.expect_status("running")
    admin.choose("Cancel chain")
    admin.confirm("Cancel chain", "1 chain cancelled or stopping.")
    admin.expect_status("cancelled")


@with_and_without_scripts(pytest.mark.exhaustive)
def test_a_queue_is_paused_and_resumed(shop, visit, scripts):
    page = visit(shop, "root", java_script_enabled=scripts)
    customer = Customer(page)
    page.goto(DASHBOARD)
    page.get_by_text("Pause another queue").click()
    page.get_by_label("Queue name").fill("default")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("row", name="default")).to_contain_text("paused")
    order = customer.place()
    page.goto(DASHBOARD)
    expect(page.get_by_role("row", name="default")).to_contain_text("paused")
    customer.comes_to(order, "Placed")
    page.goto(DASHBOARD)
    page.get_by_role("button", name="Resume default").click()
    customer.comes_to(order, "Points credited")


def test_several_jobs_are_retried_after_a_confirmation(shop, visit):
    page = visit(shop, "root")
    customer, admin = Customer(page), Admin(page)
    orders = [customer.place(card=DECLINED) for _ in range(2)]
    for order in orders:
        customer.comes_to(order, "Card declined")
    page.goto(f"{list_of('chain')}?status=failed")
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    admin.tick_all("Retry")
    for order in orders:
        expect(page.locator("#content")).to_contain_text(order.chain_id)
    admin.confirm("Retry", "2 jobs retried.")


def test_several_jobs_are_completed_with_the_same_output(shop, visit):
    page = visit(shop, "root")
    admin = Admin(page)
    chain_ids = [enqueue_for_later(page) for _ in range(2)]
    page.goto(f"{list_of('chain')}?status=pending&type=shop.report_sales")
    page.get_by_role("navigation", name="Filter").get_by_role("link", name="default", exact=True).click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    admin.tick_all("Complete")
    for chain_id in chain_ids:
        expect(page.locator("#content")).to_contain_text(chain_id)
    output = page.get_by_label("Output, as JSON")
    output.fill("{")
    admin.press("Complete")
    expect(page.locator(".errorlist")).to_contain_text("Invalid JSON")
    output.fill("3")
    admin.confirm("Complete", "2 jobs completed.")
    for chain_id in chain_ids:
        page.goto(chain_page(chain_id))
        expect(page.locator(STATUS).first).to_have_text("completed")


def enqueue_for_later(page):
    """Enqueue a chain that no worker runs yet, and return its id. Its page is open afterwards."""
    page.goto(f"{list_of('chain')}enqueue/?type=shop.report_sales")
    page.get_by_label("Or delay in minutes").fill("60")
    page.get_by_role("button", name="Enqueue").click()
    expect(page.locator(STATUS).first).to_have_text("scheduled")
    return page.url.split("/")[-3]


def test_a_chain_is_enqueued_and_deleted(shop, visit):
    page = visit(shop, "root")
    admin = Admin(page)
    page.goto(list_of("chain"))
    page.get_by_role("link", name="Enqueue a chain").click()
    page.get_by_label("Type").select_option("shop.count_stock")
    page.get_by_role("button", name="Choose").click()
    expect(page.get_by_label("Product ids")).to_have_value("[]")
    page.get_by_role("button", name="Enqueue").click()
    admin.expect_status("completed")
    chain_id = page.url.split("/")[-3]
    admin.choose("Delete")
    expect(page.get_by_role("heading", name="What will be deleted")).to_be_visible()
    expect(page.get_by_text("1 selected chain:")).to_be_visible()
    admin.confirm("Delete", "1 chain deleted.")
    expect(admin.search(chain_id)).to_have_count(0)


@pytest.fixture
def declined(shop, visit):
    customer = Customer(visit(shop))
    order = customer.place(card=DECLINED)
    customer.comes_to(order, "Card declined")
    return order


def test_users_who_may_only_view_see_no_buttons_and_no_payloads(shop, visit, declined):
    root, viewer = visit(shop, "root"), visit(shop, "viewer")
    told = f'"order_id": {declined.number}'
    root.goto(chain_page(declined.chain_id))
    expect(root.locator("#content")).to_contain_text(told)
    viewer.goto(chain_page(declined.chain_id))
    expect(viewer.locator("#content")).to_contain_text("shop.charge")
    for secret in (told, "card declined", "Traceback"):
        assert secret not in viewer.content()
    assert_no_controls(viewer)
    for address in (list_of("chain"), list_of("job"), DASHBOARD):
        viewer.goto(address)
        assert "card declined" not in viewer.content()
        assert_no_controls(viewer)


def assert_no_controls(page):
    for verb in ("Complete", "Retry", "Cancel chain", "Run now", "Reschedule", "Delete", "Enqueue a chain"):
        expect(page.get_by_role("link", name=verb, exact=True)).to_have_count(0)
    expect(page.locator("select[name=action]")).to_have_count(0)
    expect(page.locator("button[name=verb]")).to_have_count(0)


def test_a_job_is_retried_with_the_keyboard(shop, visit, declined):
    page = visit(shop, "root")
    page.goto(chain_page(declined.chain_id))
    tab_to(page, "Retry")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="No, go back")).to_be_visible()
    tab_to(page, "Retry")
    page.keyboard.press("Enter")
    Admin(page).expect_message("1 job retried.")


@with_and_without_scripts(pytest.mark.exhaustive)
def test_a_delivery_is_imported_and_a_wrong_one_is_corrected_and_retried(shop, visit, scripts):
    page = visit(shop, "root", java_script_enabled=scripts)
    admin = Admin(page)
    page.goto("/deliveries/")
    page.get_by_role("button", name="Import sample file").click()
    eventually(page, page.locator(".badge").first, "completed")
    wrong = {"name": "june.csv", "mimeType": "text/csv", "buffer": b"spoon;1"}
    page.get_by_label("Delivery note").set_input_files(wrong)
    page.get_by_role("button", name="Upload").click()
    eventually(page, page.locator(".badge").first, "failed")
    page.goto(f"{RECORDS}?record_state=failed")
    page.get_by_role("link", name="june.csv").first.click()
    expect(page.locator(".jobchains-record")).to_contain_text("there is no product 'spoon'")
    page.get_by_label("Content").fill("cup;1")
    page.get_by_role("button", name="Save and continue editing").click()
    admin.choose("Retry")
    admin.confirm("Retry", "1 record retried.")
    admin.expect_status("completed")
    page.goto(DASHBOARD)
    section = page.get_by_role("region", name="Records", exact=True)
    expect(section.get_by_role("row", name="shop.supplier_import")).to_be_visible()


def test_an_order_is_followed_until_its_chain_has_ended(shop, visit):
    page = visit(shop)
    Customer(page).place()
    expect(page.locator("#progress .badge").first).to_have_text("Points credited", timeout=WORK_SECONDS * 1000)


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


#: The focused element, and whether its focus is visible.
FOCUSED = """() => {
    const node = document.activeElement;
    const style = getComputedStyle(node);
    const isSeen = style.outlineStyle !== "none" || style.boxShadow !== "none" || style.textDecorationLine !== "none"
        || ["INPUT", "BUTTON"].includes(node.tagName);
    return [(node.value || node.textContent).trim(), isSeen];
}"""
MAX_TABS = 60


def tab_to(page, name):
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        text, is_seen = page.evaluate(FOCUSED)
        if text == name:
            assert is_seen, f"{name!r} has the focus, but does not show it."
            return
    raise AssertionError(f"{MAX_TABS} tabs do not lead to {name!r}.")
