"""The admin shows the database that ``JOBCHAINS["DATABASE"]`` names."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_jobchains import queues
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, get_registry

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def chain_id(other, settings, monkeypatch):
    """A chain with a blocker, both only on the second database."""
    ship = JobType("shop.ship")
    monkeypatch.setitem(get_registry().declared, "shop.ship", ship)
    settings.JOBCHAINS = {"DATABASE": other}
    first = ship.enqueue()
    queues.pause("mail")
    return ship.enqueue(blockers=[first]).id


@pytest.fixture
def superuser(transactional_db):
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_pages_show_the_configured_database(superuser, chain_id):
    for page, args in (
        ("admin:django_jobchains_chain_changelist", ()),
        ("admin:django_jobchains_job_changelist", ()),
        ("admin:django_jobchains_chain_change", (chain_id,)),
        ("admin:django_jobchains_job_change", (chain_id,)),
    ):
        reply = superuser.get(reverse(page, args=args), follow=True)
        assert reply.status_code == 200
        assert str(chain_id) in reply.text
    assert "mail" in superuser.get(reverse("admin:django_jobchains_dashboard_changelist")).text


def test_actions_change_the_configured_database(superuser, chain_id, other):
    data = {"action": "cancel", "_selected_action": [str(chain_id)]}
    superuser.post(reverse("admin:django_jobchains_chain_changelist"), data, follow=True)
    superuser.post(reverse("admin:django_jobchains_chain_cancel", args=[chain_id]), {"confirmed": "yes"}, follow=True)
    assert Chain.objects.using(other).get(pk=chain_id).status == "cancelled"
    assert LogEntry.objects.exists()
    assert not Job.objects.using("default").exists()
