"""The functions of ``django_jobchains.schedules``."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import django_jobchains
from django_jobchains import schedules
from django_jobchains.exceptions import (
    InvalidSchedule,
    JobTypeNotFound,
    ScheduleDeclaredInCode,
    ScheduleExists,
    ScheduleNotFound,
)
from django_jobchains.models import Job, Schedule
from django_jobchains.notifications import EVERY, Hint, get_notifier
from django_jobchains.testing import fire_schedules, run_due_jobs
from tests.schedules.conftest import next_ticks, ticks_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("job_type", [None, "schedules.sync"])
def test_an_input_of_an_older_form_stays_as_it_is(processors, job_type):
    @processors.register("schedules.sync", input=dict[str, int], upgrade_input=lambda stored: {"new": stored})
    def sync(job):
        pass

    schedules.create("mine", sync, every=60, input={"new": 1})
    Schedule.objects.update(input=1)
    assert schedules.update("mine", every=120, job_type=job_type).every == timedelta(minutes=2)
    assert Schedule.objects.get().input == 1


def test_the_module_is_exported():
    assert django_jobchains.schedules is schedules
    assert "schedules" in django_jobchains.__all__


def test_created_schedules_fire_and_can_be_changed_and_deleted(report, time):
    time.set("2026-06-01 10:00:00")
    made = schedules.create("mine", report, every=timedelta(minutes=1), input={"a": 1}, overlap="skip", jitter=1)
    assert (made.name, made.source, made.is_orphaned, made.every) == ("mine", "admin", False, timedelta(minutes=1))
    time.set("2026-06-01 10:01:00")
    assert ticks_of(fire_schedules()) == ["10:01:00"]
    run_due_jobs()

    # Without another rule, the anchor and the next tick stay.
    time.set("2026-06-01 10:01:30")
    changed = schedules.update("mine", input=2, overlap="allow", queue="mail", jitter=None)
    assert (changed.input, changed.overlap, changed.queue, changed.jitter) == (2, "allow", "mail", None)
    assert changed.on_missed == "run_once"
    assert next_ticks() == {"mine": "06-01 10:02:00"}

    # With another rule, the schedule begins anew.
    changed = schedules.update("mine", cron="30 * * * *", every=None, timezone="UTC")
    assert (changed.cron, changed.every) == ("30 * * * *", None)
    assert next_ticks() == {"mine": "06-01 10:30:00"}
    schedules.update("mine", every=120, cron=None)
    assert next_ticks() == {"mine": "06-01 10:03:30"}

    schedules.delete("mine")
    assert schedules.list() == []
    assert Job.objects.count() == 1
    with pytest.raises(ScheduleNotFound):
        schedules.get("mine")


@pytest.mark.parametrize(
    ("changes", "following"),
    [
        ({"timezone": "Asia/Tokyo"}, "06-01 10:02:00"),
        ({"every": 3600}, "06-01 11:01:30"),
        ({"every": None, "cron": "30 * * * *", "timezone": "UTC"}, "06-01 10:30:00"),
    ],
)
def test_a_tick_that_is_due_is_not_dropped_by_a_change(report, time, changes, following):
    time.set("2026-06-01 10:00:00")
    schedules.create("mine", report, every=60)
    time.set("2026-06-01 10:01:30")
    schedules.update("mine", **changes)
    assert ticks_of(fire_schedules()) == ["10:01:00"]
    assert next_ticks() == {"mine": following}


@pytest.mark.parametrize(("on_missed", "fired"), [("run_once", ["09:00:00"]), ("skip", []), ("run_all", ["09:00:00"])])
def test_ticks_of_a_new_rule_begin_with_the_change(report, time, on_missed, fired):
    time.set("2026-06-01 08:00:00")
    schedules.create("mine", report, every=3600, on_missed=on_missed)
    time.set("2026-06-01 08:59:30")
    schedules.create("always had this rule", report, cron="*/10 * * * *", on_missed=on_missed)
    time.set("2026-06-01 10:59:30")
    schedules.update("mine", every=None, cron="*/10 * * * *")
    assert ticks_of(chain for chain in fire_schedules() if chain.schedule_name == "mine") == fired
    assert next_ticks()["mine"] == "06-01 11:00:00"


def test_errors_change_nothing(processors, report, time):
    processors.schedule("code", report, every=60)
    fire_schedules()
    schedules.create("mine", report, every=60)
    before = list(Schedule.objects.order_by("name").values())
    for call, error in [
        (lambda: schedules.create("mine", report, every=5), ScheduleExists),
        (lambda: schedules.create("code", report, every=5), ScheduleExists),
        (lambda: schedules.create("new", report, every=5, cron="* * * * *"), InvalidSchedule),
        (lambda: schedules.create("", report, every=5), InvalidSchedule),
        (lambda: schedules.create("new", "schedules.unknown", every=5), InvalidSchedule),
        (lambda: schedules.create("new", report, evry=5), TypeError),
        (lambda: schedules.update("mine", cron="* * * * *"), InvalidSchedule),
        (lambda: schedules.update("mine", every=None), InvalidSchedule),
        (lambda: schedules.update("mine", max_catch_up=0), InvalidSchedule),
        (lambda: schedules.update("mine", job_type="schedules.unknown"), InvalidSchedule),
        (lambda: schedules.update("code", every=5), ScheduleDeclaredInCode),
        (lambda: schedules.update("other", every=5), ScheduleNotFound),
        (lambda: schedules.update("mine", evry=5), TypeError),
        (lambda: schedules.delete("code"), ScheduleDeclaredInCode),
        (lambda: schedules.delete("other"), ScheduleNotFound),
        (lambda: schedules.get("other"), ScheduleNotFound),
        (lambda: schedules.pause("mine", "other"), ScheduleNotFound),
        (lambda: schedules.resume("mine", "other"), ScheduleNotFound),
        (lambda: schedules.pause(), TypeError),
        (lambda: schedules.pause("mine", ""), ValueError),
        (lambda: schedules.run_now("other"), ScheduleNotFound),
        (lambda: schedules.next_ticks("other"), ScheduleNotFound),
        (lambda: schedules.next_ticks("mine", 0), ValueError),
    ]:
        with pytest.raises(error):
            call()
    assert list(Schedule.objects.order_by("name").values()) == before
    with pytest.raises(ScheduleNotFound, match="'a', 'b'"):
        schedules.pause("b", "mine", "a")


def test_code_takes_a_name_over_and_orphans_can_be_deleted(processors, report, store):
    schedules.create("mine", report, every=60, input=1)
    processors.schedule("mine", report, every=60, input=2)
    fire_schedules()
    [row] = schedules.list()
    assert (row.source, row.input) == ("code", 2)
    processors.schedules.clear()
    assert schedules.get("mine").is_orphaned
    schedules.delete("mine")
    assert schedules.list() == []


def test_run_now_enqueues_a_chain_for_no_tick(processors, report, time):
    processors.schedule("nightly", report, cron="0 3 * * *", timezone="UTC", input=5, queue="mail", priority=4)
    time.set("2026-06-01 10:00:00")
    fire_schedules()
    schedules.pause("nightly")
    chain = schedules.run_now("nightly")
    job = Job.objects.get(pk=chain.id)
    assert (job.input, job.queue, job.priority, job.schedule_name, job.scheduled_for) == (5, "mail", 4, "nightly", None)
    assert schedules.get("nightly").last_chain_id == chain.id
    assert next_ticks() == {"nightly": "06-02 03:00:00"}
    Schedule.objects.update(type_name="schedules.unknown")
    with pytest.raises(JobTypeNotFound):
        schedules.run_now("nightly")


def test_next_ticks_obey_the_clock_and_the_zone(report, time):
    schedules.create("nightly", report, cron="30 2 * * *", timezone="Europe/Berlin")
    time.set("2026-03-27 12:00:00")
    assert [tick.isoformat() for tick in schedules.next_ticks("nightly", 3)] == [
        "2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00",
    ]  # fmt: skip
    assert len(schedules.next_ticks("nightly")) == 5
    time.advance(days=2)
    assert schedules.next_ticks("nightly", 1)[0].day == 30


def test_calls_join_the_callers_transaction(report):
    with transaction.atomic():
        schedules.create("mine", report, every=60)
        schedules.run_now("mine")
        schedules.pause("mine")
        assert schedules.get("mine").is_paused
        transaction.set_rollback(True)
    assert (schedules.list(), Job.objects.count()) == ([], 0)


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_after_the_commit(report, monkeypatch):
    hints = []
    monkeypatch.setattr(get_notifier("default"), "publish", hints.extend)
    with transaction.atomic():
        schedules.create("mine", report, every=60)
        schedules.update("mine", every=5)
        schedules.pause("mine")
        schedules.resume("mine")
        assert hints == []
    assert hints == [Hint("job_scheduled", EVERY)] * 4


@pytest.mark.django_db(transaction=True)
def test_every_function_has_an_async_variant(report):
    async def run():
        await schedules.acreate("mine", report, every=60)
        await schedules.aupdate("mine", every=5)
        await schedules.apause("mine")
        await schedules.aresume("mine")
        chain = await schedules.arun_now("mine")
        assert (chain.schedule_name, chain.scheduled_for) == ("mine", None)
        ticks = await schedules.anext_ticks("mine", 2)
        row = await schedules.aget("mine")
        listed = await schedules.alist()
        await schedules.adelete("mine")
        return chain, ticks, row, listed

    chain, ticks, row, listed = async_to_sync(run)()
    assert chain.type_name == "schedules.report"
    assert ticks[1] - ticks[0] == timedelta(seconds=5)
    assert (row, [row]) == (listed[0], listed)


def test_inputs_are_encoded_like_those_of_jobs(report, time, settings):
    from cryptography.fernet import Fernet

    codec = {"BACKEND": "django_jobchains.payloads.codecs.FernetCodec", "OPTIONS": {"keys": [Fernet.generate_key()]}}
    settings.JOBCHAINS = {**getattr(settings, "JOBCHAINS", {}), "PAYLOAD_CODEC": codec}
    schedules.create("mine", report, every=60, input="secret")
    schedules.update("mine", every=10)
    assert "secret" not in str(Schedule.objects.extra(select={"raw": "CAST(input AS text)"}).get().raw)
    assert schedules.get("mine").input == "secret"
    time.advance(seconds=10)
    [chain] = fire_schedules()
    assert chain.refresh().input == "secret"
    Schedule.objects.update(type_name="schedules.other")
    time.advance(seconds=10)
    fire_schedules()
    assert schedules.get("mine").last_error.startswith("JobTypeNotFound")
