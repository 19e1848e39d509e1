"""Who sees the dashboard, what the page is made of, and what it asks the database."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from django.contrib.admin import AdminSite, site
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_jobchains import queues
from django_jobchains.admin import JobAdmin, dashboard
from django_jobchains.admin.reading import TookTooLong
from django_jobchains.store import Store
from tests.admin.dashboard.conftest import Beating, fail
from tests.admin.dashboard.looking import Page, fragment, index, look
from tests.store.jobs import create

pytestmark = pytest.mark.django_db

Staff = Callable[..., Client]


def test_strangers_are_asked_to_log_in(client: Client) -> None:
    for address in (index(), fragment()):
        reply = client.get(address)
        assert (reply.status_code, "/login/" in reply["Location"]) == (302, True)


def test_who_may_not_view_jobs_sees_no_dashboard(staff: Staff) -> None:
    client = staff("view_chain", "change_queuestate", view=False)
    assert look(client).root.all(id="jobchains-dashboard") == []
    assert client.get(fragment()).status_code == 403


def test_a_subclass_says_who_sees_it(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAdmin, "has_dashboard_permission", lambda self, request: False)
    assert look(operator).root.all(id="jobchains-dashboard") == []
    assert operator.get(fragment()).status_code == 403
    assert (
        operator.post("/admin/django_jobchains/job/dashboard/queue/", {"queue": "q", "verb": "pause"}).status_code
        == 403
    )


def test_who_may_view_jobs_sees_it_beside_the_lists(staff: Staff) -> None:
    page = look(staff())
    assert page.root.all(id="jobchains-dashboard")
    links = {link.attributes.get("href") for link in page.root.all("a")}
    assert {"/admin/django_jobchains/chain/", "/admin/django_jobchains/job/"} <= links


def test_who_may_only_view_sees_no_buttons(staff: Staff, store: Store) -> None:
    queues.pause("mail")
    create(store)
    inner = look(staff(), fragment())
    assert inner.rows("queues")
    assert inner.root.all("form") == inner.root.all("button") == inner.root.all("input") == []


def test_the_part_that_is_refreshed_is_what_the_page_shows(operator: Client, store: Store, beat: Beating) -> None:
    beat()
    create(store, 3)
    fail(store)
    [whole] = look(operator).root.all(id="jobchains-dashboard")
    assert whole.attributes["data-jobchains-refresh"] == fragment()
    part = Page(operator.get(fragment()).content.decode()).root
    headings = [heading.text for heading in part.all("h2")]
    assert headings == [heading.text for heading in whole.all("h2")]
    assert headings[0] == "What needs attention"
    assert [line.text for line in part.all("tr")] == [line.text for line in whole.all("tr")]
    assert part.all("h1") == part.all("html") == []


def test_the_page_refreshes_itself_stoppably_and_by_hand(viewer: Client) -> None:
    page = look(viewer)
    [controls] = page.root.all("p", **{"data-jobchains-refresh-of": "jobchains-dashboard"})
    [link], [button], [note] = controls.all("a"), controls.all("button"), controls.all("span", role="status")
    assert (link.text, link.attributes["href"]) == ("Refresh", index())
    assert (button.text, "hidden" in button.attributes) == ("Stop refreshing by itself", True)
    assert note.text == ""


def test_nothing_on_the_page_needs_more_than_a_strict_policy(operator: Client, store: Store, beat: Beating) -> None:
    beat(stuck=1)
    queues.pause("mail")
    queues.set_limit("mail", 2)
    create(store, 3)
    fail(store)
    for element in look(operator).root.all():
        assert element.tag != "style"
        assert element.tag != "script" or (element.attributes.get("src") and not element.text)
        assert not [name for name in element.attributes if name == "style" or name.startswith("on")], element
        assert not element.attributes.get("href", "").startswith("javascript:")


def test_headings_go_down_step_by_step_and_tables_and_fields_are_labelled(
    operator: Client, store: Store, beat: Beating
) -> None:
    beat()
    queues.pause("mail")
    create(store, 3)
    page = look(operator).root
    levels = [int(element.tag[1]) for element in page.all() if element.tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    [inner] = page.all(id="jobchains-dashboard")
    assert all(cell.attributes.get("scope") in ("row", "col") for cell in inner.all("th"))
    labelled = {label.attributes["for"] for label in inner.all("label")}
    fields = [field for field in inner.all("input") if field.attributes.get("type") != "hidden"]
    assert fields
    assert {field.attributes["id"] for field in fields} == labelled
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("size", [1, 30])
def test_it_takes_a_constant_number_of_statements(operator: Client, store: Store, beat: Beating, size: int) -> None:
    for number in range(size):
        beat(f"main:{number}:a")
        create(store, 2, queue=f"queue {number}")
        queues.pause(f"queue {number}")
        fail(store, f"shop.type_{number}")
    with CaptureQueriesContext(store.connection) as statements:
        look(operator, fragment())
    assert len(statements) == (17 if store.connection.vendor == "postgresql" else 12)


def test_a_database_that_takes_too_long_is_told_of(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(using: str) -> None:
        raise TookTooLong

    monkeypatch.setattr(dashboard, "overview", late)
    page = look(viewer)
    assert "The database did not answer within 5 s." in page.root.text
    assert "Chains" in page.root.text
    assert viewer.get(fragment()).status_code == 503


def test_another_site_without_these_lists_has_no_dashboard(viewer: Client) -> None:
    from django_jobchains.templatetags.jobchains_admin import _dashboards

    assert _dashboards(AdminSite("other")) is None
    assert _dashboards(None) is None
    assert _dashboards(site) is not None
