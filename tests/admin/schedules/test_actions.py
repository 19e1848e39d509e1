"""The actions on schedules, in the list and on their pages."""

import logging

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User

from django_jobchains import schedules
from django_jobchains.exceptions import ScheduleNotFound
from django_jobchains.models import Job, Schedule
from tests.admin.browsing import messages_in, text_of, ticked, url
from tests.admin.schedules.conftest import ALL, Report

pytestmark = pytest.mark.django_db

PERMISSIONS = {
    "run_now": "run_schedule",
    "pause": "pause_schedule",
    "resume": "pause_schedule",
    "delete": "delete_schedule",
}
every_action = pytest.mark.parametrize("verb", PERMISSIONS)


@pytest.fixture
def make(report):
    """Return a function that creates schedules, paused if the action resumes them."""

    def make(verb="", *names):
        for name in names:
            schedules.create(name, report, every=60, input=Report("day"))
            if verb == "resume":
                schedules.pause(name)
        return [schedules.get(name) for name in names]

    return make


def page_of(verb, row):
    return url(verb, row, "schedule")


def act_many(client, verb, rows):
    return client.post(url(f"{verb}_many", model="schedule"), ticked(rows))


def everything():
    return list(Schedule.objects.order_by("name").values()), Job.objects.count()


@every_action
@pytest.mark.parametrize("is_allowed", [True, False], ids=["its permission", "all others"])
def test_an_action_requires_exactly_its_permission(staff, make, verb, is_allowed):
    others = [*({*ALL} - {PERMISSIONS[verb]}), "run_job", "enqueue_job"]
    client = staff("view_schedule", PERMISSIONS[verb]) if is_allowed else staff(*others)
    row, *rows = make(verb, "a", "b", "c")
    before = everything()
    listed = text_of(client.get(url("changelist", model="schedule")))
    assert (f'<option value="{verb}">' in listed) is is_allowed
    assert (page_of(verb, row) in text_of(client.get(url("change", row, "schedule")))) is is_allowed
    assert client.get(page_of(verb, row)).status_code == (200 if is_allowed else 403)
    chosen = client.post(url("changelist", model="schedule"), {"action": verb, "index": "0", **ticked(rows)})
    assert chosen.status_code == (200 if is_allowed else 403)
    assert everything() == before, "a confirmation page must not change anything"
    for post in (lambda: client.post(page_of(verb, row)), lambda: act_many(client, verb, rows)):
        before = everything()
        assert post().status_code == (302 if is_allowed else 403)
        assert (everything() != before) is is_allowed


def test_pause_and_resume(superuser, make):
    [row] = make("", "a")
    assert messages_in(superuser.post(page_of("pause", row))) == ["1 schedule paused."]
    assert schedules.get("a").is_paused
    assert page_of("pause", row) not in text_of(superuser.get(url("change", row, "schedule")))
    make("", "b")
    assert messages_in(act_many(superuser, "pause", ["a", "b"]))[-2:] == [
        "1 schedule paused.", "1 row skipped: already paused (a).",
    ]  # fmt: skip
    assert messages_in(act_many(superuser, "resume", ["a", "b"]))[-1] == "2 schedules resumed."
    assert [row.is_paused for row in schedules.list()] == [False, False]


def test_run_now_enqueues_a_chain_of_the_user(superuser, make):
    [row] = make("resume", "a")
    reply = superuser.post(page_of("run_now", row))
    assert messages_in(reply) == ["1 chain enqueued."]
    assert reply["Location"] == url("change", row, "schedule")
    [job] = Job.objects.all()
    assert (job.schedule_name, job.scheduled_for, job.context) == ("a", None, {"actor": User.objects.get().pk})
    assert schedules.get("a").is_paused


def test_one_that_cannot_run_does_not_affect_the_others(superuser, make):
    make("", "a", "b", "c")
    Schedule.objects.filter(pk="b").update(type_name="shop.unknown")
    succeeded, skipped = messages_in(act_many(superuser, "run_now", ["a", "b", "c"]))
    assert succeeded == "2 chains enqueued."
    assert skipped.startswith("1 row skipped: No job type 'shop.unknown'.")
    assert skipped.endswith("(b).")
    assert sorted(Job.objects.values_list("schedule_name", flat=True)) == ["a", "c"]
    assert sorted(LogEntry.objects.values_list("object_id", flat=True)) == ["a", "c"]


def test_schedules_of_code_cannot_be_deleted_unless_they_are_orphaned(
    superuser, of_code, make, beat, processors, report
):
    beat(schedules="digest")
    of_code("coded")
    of_code("orphan", is_declared=False)
    make("", "mine")
    assert page_of("delete", Schedule(pk="coded")) not in text_of(
        superuser.get(url("change", Schedule(pk="coded"), "schedule"))
    )
    asked = superuser.get(page_of("delete", Schedule(pk="coded")))
    assert "skipped: declared in code, change or remove it there" in text_of(asked)
    assert messages_in(act_many(superuser, "delete", ["coded", "mine", "orphan"]))[-2:] == [
        "2 schedules deleted.", "1 row skipped: declared in code, change or remove it there (coded).",
    ]  # fmt: skip
    assert [row.name for row in schedules.list()] == ["coded"]

    # The code of this process declares it, but no worker has started with that yet.
    of_code("late", is_declared=False)
    processors.schedule("late", report, every=60, input=Report("day"))
    reply = superuser.post(page_of("delete", Schedule(pk="late")))
    assert messages_in(reply)[-1] == "1 row skipped: declared in code, change or remove it there (late)."
    assert schedules.get("late")


def test_after_deleting_one_the_list_is_shown(superuser, make):
    [row] = make("", "a")
    assert superuser.post(page_of("delete", row))["Location"] == url("changelist", model="schedule")


def test_one_that_another_user_has_just_deleted(superuser, make, monkeypatch):
    make("", "a", "b")

    def pause(*names):
        raise ScheduleNotFound("a")

    monkeypatch.setattr(schedules, "pause", pause)
    assert messages_in(act_many(superuser, "pause", ["a", "b"])) == ["2 rows skipped: no longer exists (a, b)."]
    assert messages_in(act_many(superuser, "delete", ["a", "other"]))[-1] == "1 row skipped: no longer exists (other)."


@every_action
def test_each_change_is_logged(superuser, make, verb, caplog, django_capture_on_commit_callbacks):
    make(verb, "a", "b")
    with caplog.at_level(logging.INFO, "django_jobchains"), django_capture_on_commit_callbacks(execute=True):
        act_many(superuser, verb, ["a", "b"])
    entries = LogEntry.objects.order_by("object_id")
    assert [(entry.object_id, entry.action_flag) for entry in entries] == [
        (name, DELETION if verb == "delete" else CHANGE) for name in ("a", "b")
    ]
    assert [entry.content_type.model for entry in entries] == ["schedule"] * 2
    [record] = [record for record in caplog.records if getattr(record, "event", "") == "AdminActed"]
    assert (record.jobchains["verb"], record.jobchains["ids"]) == (verb, ["a", "b"])


def test_the_history_shows_the_changes(superuser, make):
    [row] = make("", "mine/a b")
    superuser.post(page_of("pause", row))
    assert "Paused." in text_of(superuser.get(url("history", row, "schedule")))
