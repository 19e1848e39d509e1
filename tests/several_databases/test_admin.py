"""The admin shows the database that ``JOBCHAINS["DATABASE"]`` names, and a ``DatabaseSite`` shows its own."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.template import engines
from django.template.response import TemplateResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from django_jobchains import current_database, queues, schedules, use_database
from django_jobchains.admin import DatabaseSite
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, get_registry

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

LISTS = [f"{name}_changelist" for name in ("chain", "job", "schedule", "dashboard", "limitoverride")]


@pytest.fixture(params=["the configured database", "a site"])
def site(request, other, settings):
    """The name of a site whose pages use the second database."""
    settings.ROOT_URLCONF = "tests.several_databases.urls"
    if request.param == "a site":
        return other
    settings.JOBCHAINS = {"DATABASE": other}
    return "admin"


@pytest.fixture
def page(site):
    def address(name, *args):
        return reverse(f"admin:django_jobchains_{name}", args=args, current_app=site)

    return address


@pytest.fixture
def chain_id(other, site, monkeypatch):
    """A chain with a blocker, a paused queue, a schedule and a limit, all only on the second database."""
    ship = JobType("shop.ship")
    monkeypatch.setitem(get_registry().declared, "shop.ship", ship)
    with use_database(other):
        first = ship.enqueue()
        queues.pause("mail")
        queues.set_limit("mail", 3)
        schedules.create("nightly", ship, every=3600)
        return ship.enqueue(blockers=[first]).id


@pytest.fixture
def superuser(transactional_db):
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_pages_show_the_database(superuser, chain_id, page):
    for name, args in (
        ("chain_changelist", ()),
        ("job_changelist", ()),
        ("chain_change", (chain_id,)),
        ("job_change", (chain_id,)),
    ):
        reply = superuser.get(page(name, *args), follow=True)
        assert reply.status_code == 200
        assert str(chain_id) in reply.text
    assert "mail" in superuser.get(page("dashboard_changelist")).text
    assert "nightly" in superuser.get(page("schedule_changelist")).text
    assert "mail" in superuser.get(page("limitoverride_changelist")).text


def test_a_template_is_rendered_with_the_database_of_the_site(other, superuser):
    def view(request):
        return TemplateResponse(request, engines["django"].from_string("{{ alias }}"), {"alias": current_database})

    request = RequestFactory().get("/")
    request.user = User.objects.get()
    assert DatabaseSite(other).admin_view(view)(request).render().content.decode() == other


def test_links_stay_on_the_site(superuser, chain_id, page):
    index = page("chain_changelist").removesuffix("django_jobchains/chain/")
    for name, args in (("chain_change", (chain_id,)), ("job_changelist", ()), ("dashboard_changelist", ())):
        links = {part.split('"')[0] for part in superuser.get(page(name, *args), follow=True).text.split('href="/')[1:]}
        assert {link for link in links if not link.startswith((index[1:], "static/"))} <= {"", "admin/", "other/"}


def test_actions_change_the_database(superuser, chain_id, page, other):
    data = {"action": "cancel", "_selected_action": [str(chain_id)]}
    superuser.post(page("chain_changelist"), data, follow=True)
    superuser.post(page("chain_cancel", chain_id), {"confirmed": "yes"}, follow=True)
    assert Chain.objects.using(other).get(pk=chain_id).status == "cancelled"
    assert LogEntry.objects.exists()
    with use_database("default"):
        assert not Job.objects.exists()


def test_a_default_site_does_not_show_the_other_database(superuser, other, chain_id, settings):
    settings.JOBCHAINS = {}
    page = reverse("admin:django_jobchains_chain_change", args=[chain_id], current_app="admin")
    assert superuser.get(page).status_code == 302
