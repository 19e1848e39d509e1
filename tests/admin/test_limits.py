"""The pages of limits: the list, a limit with the jobs that hold its places, and the form that sets and resets it."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.urls import reverse

from django_jobchains import chains, limits
from django_jobchains.admin import JobAdmin
from django_jobchains.models import Job
from django_jobchains.processors import Concurrency, Processors, Rate, get_registry
from django_jobchains.store.queues import Override
from tests.admin.browsing import Page
from tests.records.models import Export, Upload

pytestmark = pytest.mark.django_db

LIST = "/admin/django_jobchains/limitoverride/"
ONE = f"{LIST}limit/?name="
CHANGE = "admin:django_jobchains_change_limit"


def itself(value):
    return value


@pytest.fixture
def sync(monkeypatch):
    """A type with keys, two of whose jobs run, and three wait; and a group."""
    part = Processors()
    monkeypatch.setattr(get_registry(), "slices", [part])
    sync = part.register("crm.sync", concurrency=Concurrency(2, key=itself), rate=Rate(100, 60))(lambda job: None)
    part.register("shop.charge", concurrency=Concurrency(5, group="gateway"))(lambda job: None)
    chains.enqueue_many([sync.item(key) for key in ("acme", "acme", "acme", "other", "other")])
    running = [Job.objects.filter(concurrency_key__endswith=key).first().pk for key in ("acme", "other")]
    Job.objects.filter(pk__in=running).update(status="running", last_attempt_at="2026-01-01T00:00Z", leased_by="w:1")
    return sync


def texts(reply):
    return [[cell.text.strip() for cell in row] for row in reply]


def grant(client, *codenames):
    client.user.user_permissions.add(*Permission.objects.filter(codename__in=codenames))


def page(client, url):
    reply = client.get(url)
    assert reply.status_code == 200
    return Page(reply).text


def test_the_list_shows_what_is_declared_in_effect_running_and_waiting(superuser, sync, store):
    limits.set("gateway", concurrency=3)
    limits.set(queue="mail", concurrency=0)
    store.queues.override("crm.old", Override(1))
    text = page(superuser, LIST)
    for part in (
        "gateway",
        "declared: 5",
        "acme (1), other (1)",
        "per key",
        "100 in 1 min",
        "declared by no code",
        "mail",
    ):
        assert part in text
    assert "Limits" in page(superuser, "/admin/")


def test_an_overridden_rate_that_the_code_no_longer_declares_is_not_shown(superuser, sync, store):
    store.queues.override("gateway", Override(rate=7))
    store.queues.override("crm.old", Override(rate=7))
    for url in (LIST, f"{ONE}gateway", f"{ONE}crm.old"):
        assert "7 in" not in page(superuser, url)


def test_without_limits_the_list_says_so(superuser, monkeypatch):
    monkeypatch.setattr(get_registry(), "slices", [])
    assert "No type declares a limit, and no queue has one." in page(superuser, LIST)


def test_the_page_of_a_limit_shows_the_jobs_that_hold_its_places(superuser, sync):
    reply = superuser.get(f"{ONE}crm.sync")
    for job in Job.objects.all():
        url = reverse("admin:django_jobchains_job_change", args=[job.pk])
        assert (f'href="{url}"' in reply.content.decode()) is (job.status == "running")
    limits.set(queue="default", concurrency=1)
    assert "w:1" in page(superuser, f"{ONE}default&kind=queue")
    assert superuser.get(f"{ONE}default").status_code == 404


@pytest.fixture
def uploads(monkeypatch):
    """Records with a limit: one in process, two waiting."""
    part = Processors()
    monkeypatch.setattr(get_registry(), "slices", [part])
    limit = Concurrency(3, key="size")
    part.records(Upload, concurrency=limit, queue="files")(lambda record, run: None)
    part.records(Export, name="exports", queue="files")(lambda record, run: None)
    Upload.objects.bulk_create([Upload(size=1), Upload(size=2)])
    return Upload.objects.create(size=471, state="processing", worker_hostname="w:7", num_failures=1)


def test_the_page_of_a_limit_of_records_shows_those_in_process(superuser, uploads, record_site):
    reply = superuser.get(f"{ONE}records.upload")
    text = Page(reply).text
    assert f'href="/admin/records/upload/{uploads.pk}/change/"' in reply.content.decode()
    assert f"records.upload {uploads.pk}" in text
    assert "w:7" in text
    assert "471" in text
    assert text.count(f"records.upload {uploads.pk}") == 1
    limits.set(queue="files", concurrency=4)
    Export.objects.create(state="processing", worker_hostname="w:8")
    text = page(superuser, f"{ONE}files&kind=queue")
    assert "w:7" in text
    assert "w:8" in text


def test_records_in_process_without_an_admin_class_have_no_link(superuser, uploads):
    reply = superuser.get(f"{ONE}records.upload")
    assert f"records.upload {uploads.pk}" in Page(reply).text
    assert "records/upload" not in reply.content.decode()


def test_records_are_shown_to_users_who_may_view_them(staff, uploads, record_site):
    limits.set(queue="files", concurrency=4)
    Export.objects.create(name="hidden", state="processing", worker_hostname="w:8")
    Export.objects.create(name="excluded", state="processing", worker_hostname="w:9")
    seen = ("view_limitoverride", "view_job", "view_payload", "view_export")
    text = page(staff(*seen), f"{ONE}files&kind=queue")
    assert "w:7" in text
    assert "w:8" not in text
    assert "w:9" not in text
    text = page(staff(*seen, view=False), f"{ONE}records.upload")
    assert "w:7" not in text
    assert "471" not in text
    assert "No records are in process." in text


def test_a_limit_is_set_and_reset(superuser, sync):
    change = reverse(CHANGE)
    reply = superuser.post(change, {"name": "crm.sync", "concurrency": "7", "rate": "50", "set": "1"}, follow=True)
    assert Page(reply).messages() == ["Limit crm.sync was set: Jobs at once 7, Starts 50."]
    assert reply.redirect_chain[0][0] == f"{ONE}crm.sync"
    assert (limits.list()[0].concurrency, limits.list()[0].rate) == (7, 50)
    reply = superuser.post(change, {"name": "crm.sync", "reset": "1"}, follow=True)
    assert Page(reply).messages() == ["Limit crm.sync was reset."]
    superuser.post(change, {"name": "mail", "kind": "queue", "concurrency": "0", "set": "1"})
    assert [limit.name for limit in limits.list() if limit.is_overridden] == ["mail"]
    logged = [(entry.object_repr, entry.get_change_message()) for entry in LogEntry.objects.order_by("pk")]
    assert logged == [
        ("crm.sync", "Limit set: Jobs at once 7, Starts 50."),
        ("crm.sync", "Limit reset."),
        ("mail", "Limit set: Jobs at once 0."),
    ]


def test_the_log_entries_are_in_the_language_of_the_site(superuser, sync, settings):
    settings.LANGUAGE_CODE = "en"
    given = {"name": "crm.sync", "concurrency": "7", "set": "1"}
    reply = superuser.post(reverse(CHANGE), given, headers={"accept-language": "de"}, follow=True)
    assert Page(reply).messages() == ["Limit crm.sync wurde gesetzt: Jobs gleichzeitig 7."]
    superuser.post(reverse(CHANGE), {"name": "crm.sync", "reset": "1"}, headers={"accept-language": "de"})
    entries = LogEntry.objects.order_by("pk")
    assert [entry.get_change_message() for entry in entries] == ["Limit set: Jobs at once 7.", "Limit reset."]


def submit(client, page, **numbers):
    """Submit the form of a page of a limit, after these numbers were typed."""
    [form] = [form for form in page.root.all("form") if form.attributes.get("action") == reverse(CHANGE)]
    shown = {field.attributes["name"]: field.attributes.get("value", "") for field in form.all("input")}
    return client.post(reverse(CHANGE), {**shown, **numbers, "set": "1"}, follow=True)


def test_the_form_changes_only_the_numbers_that_the_user_changed(superuser, sync):
    shown = Page(superuser.get(f"{ONE}crm.sync"))
    limits.set("crm.sync", concurrency=0)
    reply = submit(superuser, shown, rate="50")
    assert Page(reply).messages() == ["Limit crm.sync was set: Starts 50."]
    assert (limits.list()[0].concurrency, limits.list()[0].rate) == (0, 50)
    limits.reset("crm.sync")
    for unchanged in ({}, {"rate": ""}):
        [message] = Page(submit(superuser, shown, **unchanged)).messages()
        assert message == "Nothing was changed. Enter a new number. To remove an override, use the button Reset."
    assert not limits.list()[0].is_overridden


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "crm.snyc", "concurrency": "1"}, "Did you mean 'crm.sync'?"),
        ({"name": "crm.sync", "concurrency": "-1"}, "Jobs at once"),
        ({"name": "crm.sync", "concurrency": "1.5"}, "Jobs at once"),
        ({"name": "crm.sync"}, "Enter a new number."),
    ],
)
def test_invalid_changes_are_reported(superuser, sync, given, message):
    reply = superuser.post(reverse(CHANGE), {**given, "set": "1"}, follow=True)
    [text] = Page(reply).messages()
    assert text.startswith("Nothing was changed. ")
    assert message in text
    assert not any(limit.is_overridden for limit in limits.list())


def test_each_right_needs_its_permission(staff, sync):
    nobody, viewer = staff(), staff("view_limitoverride", "view_job", "view_payload")
    changer = staff("view_limitoverride", "change_limitoverride")
    assert nobody.get(LIST).status_code == 403
    assert nobody.post(reverse(CHANGE), {"name": "crm.sync", "reset": "1"}).status_code == 403
    assert "acme (1)" in page(viewer, LIST)
    assert 'name="set"' not in viewer.get(f"{ONE}crm.sync").content.decode()
    assert viewer.post(reverse(CHANGE), {"name": "crm.sync", "concurrency": "1", "set": "1"}).status_code == 403
    assert 'name="set"' in changer.get(f"{ONE}crm.sync").content.decode()
    assert changer.post(reverse(CHANGE), {"name": "crm.sync", "concurrency": "1", "set": "1"}).status_code == 302
    assert changer.post(reverse(CHANGE), {"name": "mail", "kind": "queue", "concurrency": "1"}).status_code == 403
    assert changer.get(reverse(CHANGE)).status_code == 405


def test_keys_and_jobs_are_hidden_with_payloads_and_rows(staff, sync, monkeypatch):
    assert "acme" not in page(staff("view_limitoverride", "view_job"), LIST)
    viewer = staff("view_limitoverride", "view_job", "view_payload")
    monkeypatch.setattr(JobAdmin, "get_queryset", lambda self, request: Job.objects.filter(queue="other"))
    limits.set(queue="default", concurrency=1)
    text = page(viewer, LIST)
    assert "acme" not in text
    assert "default" not in text
    assert "w:1" not in page(viewer, f"{ONE}crm.sync")


def test_secrets_in_keys_are_masked(superuser, sync):
    chain = chains.enqueue(sync, "https://bob:canary4711@db.example/x")
    Job.objects.filter(chain_id=chain.id).update(status="running", leased_by="w:1")
    for address in (LIST, f"{ONE}crm.sync"):
        text = page(superuser, address)
        assert "db.example" in text
        assert "canary4711" not in text
