"""The pages that create and change schedules."""

from datetime import timedelta

import pytest
from cryptography.fernet import Fernet
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry

from django_jobchains import schedules
from django_jobchains.admin import ChainAdmin, ScheduleAdmin
from django_jobchains.models import Schedule
from django_jobchains.processors import RunningJob
from tests.admin.browsing import Page, index, messages_in, text_of, url
from tests.admin.schedules.conftest import ALL, Report

pytestmark = pytest.mark.django_db

ADD = "/admin/django_jobchains/schedule/add/"
USUAL = {
    "name": "mine", "cron": "0 3 * * *", "every": "", "timezone": "Europe/Berlin", "overlap": "allow",
    "on_missed": "run_once", "max_catch_up": "100", "jitter": "", "queue": "", "priority": "",
}  # fmt: skip


@pytest.fixture
def mine(report):
    options = {
        "overlap": "skip",
        "on_missed": "run_all",
        "max_catch_up": 7,
        "jitter": 90,
        "queue": "bulk",
        "priority": 3,
    }
    return schedules.create("mine", report, every=timedelta(days=1, minutes=5), input=Report("day", 2), **options)


def create(client, type_name="shop.report", **answers):
    payload = {"payload_kind": "day", "payload_days": "1"}
    return client.post(f"{ADD}?type={type_name}", {**USUAL, **payload, **answers})


def initial_of(client, address):
    """Return the values of the fields as a browser would send them."""
    context = client.get(address).context
    values = {}
    for form in filter(None, (context["form"], context["input_form"])):
        values |= {field.name: field.value() for field in form}
        values |= {name: form[name].field.prepare_value(form[name].value()) for name in form.fields}
    return {name: "" if value is None else str(value) for name, value in values.items()}


def errors_of(reply):
    assert reply.status_code == 200
    forms = (reply.context["form"], reply.context["input_form"])
    return {name: str(texts[0]) for form in forms if form for name, texts in form.errors.items()}


def test_it_creates_a_schedule_and_shows_its_page(superuser, report):
    assert ADD in text_of(superuser.get(index()))
    options = {"overlap": "queue", "on_missed": "run_all", "max_catch_up": "5", "jitter": "0:01:30"}
    reply = create(superuser, payload_kind="week", payload_days="7", queue="bulk", priority="-2", **options)
    made = schedules.get("mine")
    assert messages_in(reply) == ["The schedule was created."]
    assert reply["Location"] == url("change", made, "schedule")
    assert (made.type_name, made.input, made.source) == ("shop.report", {"kind": "week", "days": 7}, "admin")
    assert (made.cron, made.every, made.timezone) == ("0 3 * * *", None, "Europe/Berlin")
    assert (made.overlap, made.on_missed, made.max_catch_up) == ("queue", "run_all", 5)
    assert (made.jitter, made.queue, made.priority) == (timedelta(seconds=90), "bulk", -2)
    [entry] = LogEntry.objects.all()
    assert (entry.object_id, entry.action_flag, entry.change_message) == ("mine", ADDITION, "Added.")


def test_a_jitter_of_zero_is_none(superuser, report):
    create(superuser, jitter="0")
    assert schedules.get("mine").jitter is None


def test_an_interval_and_the_projects_time_zone(superuser, report, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    assert "Leave empty for Asia/Tokyo." in text_of(superuser.get(f"{ADD}?type=shop.report"))
    create(superuser, cron="", every="1 00:05:00", timezone="")
    made = schedules.get("mine")
    assert (made.cron, made.every, made.timezone) == (None, timedelta(days=1, minutes=5), "Asia/Tokyo")


@pytest.mark.parametrize(
    ("answers", "field", "text"),
    [
        ({"name": ""}, "name", "This field is required."),
        ({"name": "a\x7fb"}, "name", "is not a name"),
        ({"name": "taken"}, "name", "A schedule with this name already exists."),
        ({"cron": ""}, "__all__", "Enter a cron expression or an interval."),
        ({"every": "0:05:00"}, "__all__", "Enter a cron expression or an interval, not both."),
        ({"cron": "0 3 * *"}, "cron", "does not have 5 fields"),
        ({"cron": "0 0 31 2 *"}, "cron", "never matches"),
        ({"cron": "x" * 201}, "cron", "at most 200 characters"),
        ({"cron": "", "every": "0"}, "every", "Ensure this value is greater than or equal to 0:00:01."),
        ({"cron": "", "every": "soon"}, "every", "Enter a valid duration."),
        ({"timezone": "Mars"}, "timezone", "is not a known time zone"),
        ({"overlap": "x"}, "overlap", "Select a valid choice"),
        ({"on_missed": ""}, "on_missed", "This field is required."),
        ({"max_catch_up": "0"}, "max_catch_up", "is not a whole number from 1"),
        ({"jitter": "-1"}, "jitter", "Ensure this value is greater than or equal to 0:00:00."),
        ({"queue": "a\tb"}, "queue", "is not a name"),
        ({"priority": "40000"}, "priority", "is not a whole number from"),
        ({"payload_kind": ""}, "payload_kind", "This field is required."),
        ({"payload_days": "x"}, "payload_days", "Enter a whole number."),
    ],
)
def test_errors_are_shown_at_their_fields_and_nothing_is_created(superuser, report, answers, field, text):
    schedules.create("taken", report, every=60, input=Report("day"))
    errors = errors_of(create(superuser, **answers))
    assert errors.keys() == {field}
    assert text in errors[field]
    assert [row.name for row in schedules.list()] == ["taken"]


def test_the_errors_of_the_rule_and_of_the_input_are_shown_together(superuser, report):
    assert errors_of(create(superuser, max_catch_up="", payload_days="x")).keys() == {"max_catch_up", "payload_days"}


def test_only_types_that_the_user_may_start_without_blockers_are_offered(superuser, processors, report, monkeypatch):
    processors.register("shop.inner", entry=False)(lambda job: None)
    processors.register("shop.other")(lambda job: None)
    processors.register("shop.joins", blockers=("shop.other",))(lambda job: None)

    def offered():
        return [name for name, _ in superuser.get(ADD).context["type_form"].fields["type"].choices]

    assert offered() == ["shop.other", "shop.report"]
    monkeypatch.setattr(ChainAdmin, "entry_types", lambda self, request: {"shop.report": report})
    assert offered() == ["shop.report"]
    assert create(superuser, "shop.other", payload="1").status_code == 200
    assert schedules.list() == []


def test_the_form_of_a_schedule_changes_nothing_if_nothing_is_changed(superuser, mine, time):
    before = list(Schedule.objects.values())
    page = url("edit", mine, "schedule")
    values = initial_of(superuser, page)
    assert (values["every"], values["jitter"]) == ("1 00:05:00", "00:01:30")
    reply = superuser.post(page, values)
    assert messages_in(reply) == ["The schedule was changed."]
    assert reply["Location"] == url("change", mine, "schedule")
    assert list(Schedule.objects.values()) == before
    [entry] = LogEntry.objects.all()
    assert (entry.object_id, entry.action_flag, entry.change_message) == ("mine", CHANGE, "Changed.")


def test_the_rule_the_type_and_the_input_can_be_changed(superuser, processors, mine):
    processors.register("shop.other")(lambda job: None)
    page = url("edit", mine, "schedule")
    assert page in text_of(superuser.get(url("change", mine, "schedule")))
    values = {**initial_of(superuser, page), "cron": "0 4 * * *", "every": "", "payload": '{"kind": "week"}'}
    superuser.post(page, values)
    changed = schedules.get("mine")
    assert (changed.cron, changed.every, changed.input) == ("0 4 * * *", None, {"kind": "week", "days": 1})
    superuser.post(f"{page}?type=shop.other", {**values, "payload": "[5]"})
    changed = schedules.get("mine")
    assert (changed.type_name, changed.input) == ("shop.other", [5])


def shown_by(client, address):
    """Return the names and values of the hidden fields, which a browser sends with the visible ones."""
    fields = Page(client.get(address)).root.all("input", type="hidden")
    return {field.attributes["name"]: field.attributes.get("value", "") for field in fields}


def test_the_form_of_a_schedule_changes_only_what_the_user_changed(superuser, mine):
    page = url("edit", mine, "schedule")
    values = {**initial_of(superuser, page), **shown_by(superuser, page)}
    schedules.update("mine", cron="0 4 * * *", every=None, jitter=None, queue="slow")
    superuser.post(page, {**values, "priority": "5"})
    changed = schedules.get("mine")
    assert (changed.cron, changed.every, changed.jitter) == ("0 4 * * *", None, None)
    assert (changed.queue, changed.priority) == ("slow", 5)
    superuser.post(page, {**values, "every": "0:30:00"})
    changed = schedules.get("mine")
    assert (changed.cron, changed.every, changed.queue) == (None, timedelta(minutes=30), "slow")
    schedules.update("mine", input=Report("week", 9))
    superuser.post(page, {**values, "priority": "6"})
    assert schedules.get("mine").input == {"kind": "week", "days": 9}


def test_a_type_that_another_user_has_just_chosen_stays(superuser, processors, mine, monkeypatch):
    processors.register("shop.other")(lambda job: None)
    page = url("edit", mine, "schedule")
    values, update = {**initial_of(superuser, page), **shown_by(superuser, page)}, schedules.update

    def late(name, **options):
        update(name, job_type="shop.other", input=[5])
        return update(name, **options)

    monkeypatch.setattr(schedules, "update", late)
    superuser.post(page, {**values, "priority": "5"})
    changed = schedules.get("mine")
    assert (changed.type_name, changed.input, changed.priority) == ("shop.other", [5], 5)


def test_the_options_of_an_input_of_an_earlier_version_can_be_changed(superuser, processors, mine):
    @processors.register("shop.renamed", upgrade_input=lambda stored: Report(stored["name"]))
    def renamed(job: RunningJob[Report]) -> None: ...

    Schedule.objects.update(type_name="shop.renamed", input={"name": "tea"})
    page = url("edit", mine, "schedule")
    values = {**initial_of(superuser, page), **shown_by(superuser, page)}
    superuser.post(page, {**values, "queue": "fast"})
    changed = schedules.get("mine")
    assert (changed.queue, changed.input) == ("fast", {"name": "tea"})
    assert errors_of(superuser.post(page, {**values, "payload": '{"name": "jam"}'})).keys() == {"payload"}


def test_errors_of_a_change_are_shown_and_nothing_is_changed(superuser, mine):
    page, before = url("edit", mine, "schedule"), list(Schedule.objects.values())
    values = initial_of(superuser, page)
    assert errors_of(superuser.post(page, {**values, "every": "0:00:00.5"})).keys() == {"every"}
    assert errors_of(superuser.post(page, {**values, "payload": '{"days": 1}'})).keys() == {"payload"}
    assert list(Schedule.objects.values()) == before


def test_masked_inputs_are_not_shown_and_stay(superuser, report, mine):
    schedules.update("mine", input=Report("password=canary4711"))
    page = url("edit", mine, "schedule")
    shown = text_of(superuser.get(page))
    assert "canary4711" not in shown
    assert "The input stays as it is." in shown
    superuser.post(page, {**initial_of(superuser, page), "queue": "fast"})
    changed = schedules.get("mine")
    assert (changed.queue, changed.input["kind"]) == ("fast", "password=canary4711")
    other = {**initial_of(superuser, f"{page}?type=shop.report&input=new"), "payload_kind": "day"}
    assert "canary4711" not in str(other)
    superuser.post(f"{page}?type=shop.report&input=new", other)
    assert schedules.get("mine").input == {"kind": "day", "days": 1}


def test_inputs_that_the_user_may_not_view_are_not_shown_and_stay(staff, mine):
    client, page = staff("view_schedule", "change_schedule"), url("edit", mine, "schedule")
    schedules.update("mine", input=Report("canary4711"))
    assert "canary4711" not in text_of(client.get(page))
    client.post(page, {**initial_of(client, page), "queue": "fast", "payload": '{"kind": "forged"}'})
    changed = schedules.get("mine")
    assert (changed.queue, changed.input["kind"]) == ("fast", "canary4711")
    assert "canary4711" in text_of(staff("view_schedule", "change_schedule", "view_payload").get(page))


def test_a_type_that_no_app_declares_any_more_can_be_replaced(superuser, mine):
    Schedule.objects.update(type_name="shop.gone")
    page = url("edit", mine, "schedule")
    asked = superuser.get(page)
    assert "form" not in asked.context
    assert "shop.gone is not one of the available choices" in text_of(asked)
    replaced = f"{page}?type=shop.report"
    superuser.post(replaced, {**initial_of(superuser, replaced), "payload_kind": "day"})
    assert schedules.get("mine").type_name == "shop.report"


def test_schedules_of_code_are_not_changed(superuser, of_code, beat):
    beat(schedules="digest")
    coded, before = of_code(), list(Schedule.objects.values())
    page = url("edit", coded, "schedule")
    assert page not in text_of(superuser.get(url("change", coded, "schedule")))
    for reply in (superuser.get(page), superuser.post(page, USUAL)):
        assert messages_in(reply)[-1] == "Nothing was changed: declared in code, change or remove it there."
        assert reply["Location"] == url("change", coded, "schedule")
    assert list(Schedule.objects.values()) == before


def test_a_schedule_that_has_just_been_deleted(superuser, mine, monkeypatch):
    page = url("edit", mine, "schedule")
    values, update = initial_of(superuser, page), schedules.update

    def late(name, **options):
        schedules.delete(name)
        return update(name, **options)

    monkeypatch.setattr(schedules, "update", late)
    reply = superuser.post(page, values)
    assert messages_in(reply) == ["Nothing was changed: no longer exists."]


@pytest.mark.parametrize("permission", ["add_schedule", "change_schedule"])
def test_each_page_requires_its_permission(staff, mine, permission):
    addresses = {"add_schedule": f"{ADD}?type=shop.report", "change_schedule": url("edit", mine, "schedule")}
    others = staff(*({*ALL} - {permission}), "enqueue_job")
    # The permission to change includes the one to view, as in all of Django's admin.
    allowed, blind = staff("view_schedule", permission), staff("add_schedule")
    page = addresses[permission]
    before = list(Schedule.objects.values())
    for client in (others, blind):
        assert client.get(page).status_code == client.post(page, USUAL).status_code == 403
        assert addresses["change_schedule"] not in text_of(client.get(url("change", mine, "schedule"))) or (
            permission == "add_schedule"
        )
    assert list(Schedule.objects.values()) == before
    assert allowed.get(page).status_code == 200


def test_a_subclass_can_decide_by_the_schedule(staff, mine, monkeypatch):
    own = ScheduleAdmin.may

    def may(self, request, permission, obj=None):
        return own(self, request, permission, obj) and not (permission == "change_schedule" and obj)

    monkeypatch.setattr(ScheduleAdmin, "may", may)
    client, page = staff("view_schedule", "change_schedule"), url("edit", mine, "schedule")
    assert client.get(page).status_code == 403
    assert page not in text_of(client.get(url("change", mine, "schedule")))


def test_encoded_inputs_are_decoded_on_the_page_and_in_the_form(superuser, report, settings):
    codec = {"BACKEND": "django_jobchains.payloads.codecs.FernetCodec", "OPTIONS": {"keys": [Fernet.generate_key()]}}
    settings.JOBCHAINS = {**getattr(settings, "JOBCHAINS", {}), "PAYLOAD_CODEC": codec}
    create(superuser, payload_kind="canary4711")
    assert "canary4711" not in str(Schedule.objects.extra(select={"raw": "CAST(input AS text)"}).get().raw)
    made = schedules.get("mine")
    assert "canary4711" in text_of(superuser.get(url("change", made, "schedule")))
    page = url("edit", made, "schedule")
    values = initial_of(superuser, page)
    assert '"kind": "canary4711"' in values["payload"]
    superuser.post(page, {**values, "payload": '{"kind": "other"}'})
    assert schedules.get("mine").input == {"kind": "other", "days": 1}
    settings.JOBCHAINS = {**settings.JOBCHAINS, "PAYLOAD_CODEC": {}}
    assert "Cannot be displayed" in text_of(superuser.get(url("change", made, "schedule")))
    assert "The input stays as it is." in text_of(superuser.get(page))
