"""A project with two databases: the usual admin shows one of them, and a ``DatabaseSite`` the other."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.steps import Admin, eventually

#: ``tests/several_databases/test_admin.py`` tests the same without a browser.
pytestmark = pytest.mark.exhaustive

SITES = {"default": "/admin/", "shard": "/shard/"}


@pytest.fixture(scope="module")
def sharded(open_shop):
    return open_shop("sharded", settings="tests.browser.sharded")


@pytest.fixture(scope="module")
def ids(sharded):
    """The ids of a scheduled chain in each database."""
    return sharded.script("shard")


def test_a_site_shows_and_changes_only_its_database(sharded, ids, visit):
    page = visit(sharded, "root")
    page.goto(SITES["shard"])
    expect(page.locator("#site-name")).to_have_text("Database shard")
    page.locator("#content-main").get_by_role("link", name="Chains", exact=True).click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="scheduled", exact=True).first.click()
    expect(page).to_have_url(re.compile(f"{SITES['shard']}.*{ids['shard']}"))
    with sharded.worker("--database", "shard"):
        Admin(page).choose("Run now")
        Admin(page).confirm("Run now", "1 job is due now.")
        eventually(page, page.locator(".jobchains-status").first, "completed")
        expect(page).to_have_url(re.compile(f"{SITES['shard']}.*{ids['shard']}"))
        page.get_by_role("link", name="History").click()
        expect(page.locator("#change-history")).to_contain_text("Made due now.")
        page.get_by_role("link", name="Dashboard").first.click()
        expect(page.locator(".jobchains-figures").first).to_contain_text(re.compile(r"workers\s*1"))
    page.goto(f"{SITES['shard']}shop/order/")
    expect(page.locator("#result_list")).to_contain_text("Points credited")
    page.goto(f"{SITES['default']}shop/order/")
    expect(page.locator("#result_list")).not_to_contain_text("Points credited")
    page.goto(f"{SITES['default']}django_jobchains/chain/{ids['default']}/change/")
    expect(page.locator(".jobchains-status").first).to_have_text("scheduled")
