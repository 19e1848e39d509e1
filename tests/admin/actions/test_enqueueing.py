"""The page that enqueues a chain."""

from datetime import UTC, datetime

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_jobchains import context
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, get_registry
from tests.admin.browsing import messages_in, text_of, url


def enqueue(client, type_name="shop.pack", **answers):
    return client.post(f"{url('enqueue')}?type={type_name}", {"payload_number": "1", **answers})


def test_only_entry_types_are_offered(superuser):
    page = superuser.get(url("enqueue"))
    names = [name for name, _ in page.context["type_form"].fields["type"].choices]
    assert names == ["shop.mail", "shop.pack", "shop.ship", "shop.weigh"]
    enqueue(superuser, "shop.send")
    enqueue(superuser, "os.system")
    superuser.post(url("enqueue"), {"payload": "1", "type": "shop.ship"})
    assert not Job.objects.exists()


def test_types_with_required_blockers_are_not_offered(superuser, monkeypatch):
    types = [JobType("shop.accepts", blockers=["shop.part"]), JobType("shop.requires", blockers=("shop.part",))]
    monkeypatch.setattr(get_registry(), "slices", [])
    monkeypatch.setattr(get_registry(), "declared", {job_type.name: job_type for job_type in types})
    page = superuser.get(url("enqueue"))
    assert [name for name, _ in page.context["type_form"].fields["type"].choices] == ["shop.accepts"]
    assert enqueue(superuser, "shop.requires").status_code == 200
    assert not Job.objects.exists()


def test_it_enqueues_a_chain_with_the_given_options_and_shows_its_page(superuser):
    assert "&quot;number&quot;" in text_of(superuser.get(f"{url('enqueue')}?type=shop.pack")), "no schema of the input"
    options = {"queue": "slow", "priority": "5", "run_at": "2099-01-01T10:00", "deduplication_key": "p-1"}
    reply = enqueue(superuser, payload_number="3", **options)
    [job], [entry] = Job.objects.all(), LogEntry.objects.all()
    assert messages_in(reply) == ["The chain was enqueued."]
    assert reply["Location"] == url("change", Chain.objects.get())
    assert (job.type_name, job.input, job.queue) == ("shop.pack", {"number": 3, "to": ""}, "slow")
    assert (job.priority, job.run_at, job.deduplication_key) == (5, datetime(2099, 1, 1, 10, tzinfo=UTC), "p-1")
    assert job.context == {"actor": User.objects.get().pk}
    assert (entry.object_id, entry.action_flag, entry.change_message) == (str(job.pk), ADDITION, "Enqueued.")


@pytest.mark.parametrize(
    ("answers", "field"),
    [
        ({"payload_number": ""}, "payload_number"),
        ({"payload_number": "x"}, "payload_number"),
        ({"queue": "a\tb"}, "queue"),
        ({"queue": "q" * 101}, "queue"),
        ({"priority": "40000"}, "priority"),
        ({"deduplication_key": "k" * 201}, "deduplication_key"),
        ({"deduplication_key": "a\x7fb"}, "deduplication_key"),
        ({"run_at": "2099-01-01T10:00", "delay_minutes": "5"}, "__all__"),
    ],
)
def test_an_invalid_form_shows_errors_and_enqueues_nothing(superuser, answers, field):
    reply = enqueue(superuser, **answers)
    assert reply.status_code == 200
    assert set(reply.context["form"].errors) == {field}
    assert not Job.objects.exists()


def test_a_duplicate_key_leads_to_the_existing_chain(superuser):
    enqueue(superuser, deduplication_key="p-1")
    [chain] = Chain.objects.all()
    reply = enqueue(superuser, deduplication_key="p-1")
    assert messages_in(reply)[-1] == "The chain was not enqueued: a chain with this deduplication key already exists."
    assert reply["Location"] == url("change", chain)
    assert Job.objects.count() == 1
    assert LogEntry.objects.count() == 1, "only the first request has enqueued a chain"


def test_an_actor_bound_by_the_project_is_kept(superuser):
    with context.bound(actor="staff:7"):
        enqueue(superuser)
    assert Job.objects.get().context == {"actor": "staff:7"}


def test_enqueueing_requires_the_permission_and_the_csrf_token(staff, superuser):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = superuser.cookies
    assert enqueue(strict).status_code == 403
    superuser.get(f"{url('enqueue')}?type=shop.ship&payload=1")
    for permissions in ((), ("run_job", "retry_job", "complete_job", "delete_chain")):
        client = staff(*permissions)
        assert client.get(url("enqueue")).status_code == 403
        assert enqueue(client).status_code == 403
        assert url("enqueue") not in text_of(client.get(url("changelist")))
    assert not Job.objects.exists()
    client = staff("enqueue_job")
    assert url("enqueue") in text_of(client.get(url("changelist")))
    assert enqueue(client).status_code == 302
    blind = staff("enqueue_job", view=False)
    assert enqueue(blind)["Location"] == url("enqueue"), "a user who may not view chains returns to the form"
    assert Job.objects.count() == 2
