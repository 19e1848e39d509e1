"""``make shop`` and its guided tour, as a visitor walks it."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from tests.browser.shop import PROJECT, START_SECONDS
from tests.browser.steps import DECLINED, WORK_SECONDS, Admin, Customer, eventually
from tests.support.servers import ROOT, free_port

FLAKY = "A flaky card"


@pytest.fixture
def tin_kettle(tmp_path):
    """The shop that ``manage.py open_shop`` opens, with its worker, until Ctrl-C."""
    url, log = f"127.0.0.1:{free_port()}", tmp_path / "open_shop.log"
    environment = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{tmp_path / 'shop'}.sqlite3",
        "DEBUG": "1",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{PROJECT}",
    }
    command = [sys.executable, "manage.py", "open_shop", url, "--health-port", str(free_port())]
    with log.open("wb") as output:
        opened = subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(f"http://{url}/tour/"):
            assert opened.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield SimpleNamespace(url=f"http://{url}", folder=tmp_path, log=log)
        os.killpg(opened.pid, signal.SIGINT)  # as a terminal does
        assert opened.wait(30) == 0, log.read_text()
        assert log.read_text().count("ended with code 0") >= 2
    finally:
        if opened.poll() is None:
            os.killpg(opened.pid, signal.SIGKILL)
            opened.wait()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.mark.timeout(240)
def test_the_guided_tour(tin_kettle, visit):
    page = visit(tin_kettle)
    customer, admin = Customer(page), Admin(page)

    def step(title):
        page.goto("/tour/")
        return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=title))

    step("Order and pay")
    page.get_by_role("link", name="Log in").click()
    page.get_by_label("Username").fill("staff")
    page.get_by_label("Password").fill("tea")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Guided tour")).to_be_visible()

    customer.comes_to(customer.place(), "Points credited")

    declined = customer.place(card=DECLINED)
    customer.comes_to(declined, "Card declined")
    step("A flaky card").get_by_role("link", name="failed chains").click()
    expect(page.locator("#result_list")).to_contain_text("shop.charge")

    expensive = customer.place(product="Tin kettle", quantity=4)
    step("An approval").get_by_role("link", name="Approvals").click()
    page.get_by_role("button", name="Approve").click()
    customer.comes_to(expensive, "Points credited")

    step("A slow job").get_by_role("link", name="Stocktaking").click()
    page.get_by_role("button", name="Count all products").click()
    expect(page.locator("#stocktaking .badge")).to_have_text("running", timeout=WORK_SECONDS * 1000)
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("#stocktaking .badge")).to_have_text("cancelled", timeout=WORK_SECONDS * 1000)

    step("A nightly report").get_by_role("button", name="Report now").click()
    admin.expect_status("completed")

    order = customer.place(card=FLAKY)
    kill = step("A worker that is killed").get_by_role("button", name=re.compile("Kill process"))
    expect(kill.first).to_be_visible()
    kill.first.click()
    expect(page.locator(".notice")).to_contain_text("was killed")
    customer.comes_to(order, "Points credited")

    step("Records").get_by_role("link", name="Deliveries").click()
    page.get_by_role("button", name="Import sample file").click()
    eventually(page, page.locator(".badge").first, "completed")

    step("A renderer that crashes").get_by_role("link", name="label").click()
    page.get_by_label("Recipient").fill("Ada")
    page.get_by_label("It crashes").check()
    page.get_by_role("button", name="Render").click()
    label = page.get_by_role("article").filter(has_text="Ada")
    expect(label.locator(".badge")).to_have_text("completed", timeout=WORK_SECONDS * 1000)
