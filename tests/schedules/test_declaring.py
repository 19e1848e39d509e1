"""Declarations of schedules, and what the system checks say about wrong ones."""

import sys
from dataclasses import dataclass
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured

from django_jobchains import Concurrency, schedules
from django_jobchains.declare.checks import check_registry
from django_jobchains.exceptions import InvalidSchedule
from django_jobchains.processors import JobType, Processors, RunningJob
from django_jobchains.testing import clock, fire_schedules
from django_jobchains.worker import Worker

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Report:
    kind: str


@pytest.fixture
def typed(processors):
    @processors.register("schedules.typed")
    def typed(job: RunningJob[Report]) -> None: ...

    return typed


WRONG = [
    ({}, "pass either cron= or every="),
    ({"cron": "0 3 * * *", "every": 5}, "pass either cron= or every="),
    ({"cron": "0 3 * *"}, "cron='0 3 \\* \\*' does not have 5 fields: minute, hour"),
    ({"cron": "0 0 3 * * *"}, "does not have 5 fields"),
    ({"cron": "61 3 * * *"}, "cron='61 3 \\* \\* \\*' is not a valid expression: Bad minute"),
    ({"cron": "0 3 * * MUN"}, "is not a valid expression: Bad day-of-week"),
    ({"cron": "0 0 31 2 *"}, "cron='0 0 31 2 \\*' never matches"),
    ({"cron": "0 0 30 2 *"}, "never matches"),
    ({"cron": ""}, "cron='' is not a cron expression"),
    ({"cron": 5}, "cron=5 is not a cron expression"),
    ({"cron": "* " * 200}, "is not a cron expression of up to 200 characters"),
    ({"every": 0}, "every=0 is not a duration.*1 or more seconds"),
    ({"every": -5}, "every=-5 is not"),
    ({"every": timedelta(milliseconds=500)}, "every=.* is not"),
    ({"every": "5 x"}, "every='5 x' is not"),
    ({"every": 5, "timezone": "Europe/Berln"}, "timezone='Europe/Berln' is not a known time zone.*tzdata"),
    ({"every": 5, "timezone": "/etc/passwd"}, "is not a known time zone"),
    ({"every": 5, "timezone": 3}, "is not a known time zone"),
    ({"every": 5, "overlap": "never"}, "overlap='never' is not one of 'allow', 'skip', 'queue'"),
    ({"every": 5, "on_missed": True}, "on_missed=True is not one of 'run_once', 'skip', 'run_all'"),
    ({"every": 5, "max_catch_up": 0}, "max_catch_up=0 is not a whole number from 1"),
    ({"every": 5, "jitter": -1}, "jitter=-1 is not a duration"),
    ({"every": 5, "queue": ""}, "queue='' is not a name"),
    ({"every": 5, "priority": 40_000}, "priority=40000 is not"),
    ({"every": 5, "input": {1, 2}}, "set"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG)
def test_wrong_arguments_are_errors_of_the_system_checks_and_of_create(processors, report, options, problem):
    processors.schedule("nightly", report, **options)
    [error] = check_registry()
    assert error.id == "jobchains.E022"
    with pytest.raises(InvalidSchedule, match=f"^Schedule 'nightly': .*{problem}"):
        raise InvalidSchedule("nightly", error.msg.removeprefix("Schedule 'nightly': "))
    with pytest.raises(InvalidSchedule, match=problem):
        schedules.create("other", report, **options)
    with pytest.raises(ImproperlyConfigured, match=f"Schedule 'nightly': .*{problem}"):
        Worker()
    with pytest.raises(InvalidSchedule, match=problem):
        fire_schedules()
    assert schedules.list() == []


def test_wrong_types_and_names_are_errors(processors, report, typed):
    required = JobType("schedules.first")
    processors.register("schedules.later", entry=False)(lambda job: None)
    processors.register("schedules.joins", blockers=(required,))(lambda job: None)
    cases = {
        "unknown": ("schedules.reprot", {}),
        "later": ("schedules.later", {}),
        "joins": ("schedules.joins", {}),
        "x" * 101: (report, {}),
        "no type": (None, {}),
        "wrong input": (typed, {"input": {"kind": 3}}),
        "no input": (typed, {}),
    }
    for name, (job_type, options) in cases.items():
        processors.schedule(name, job_type, every=5, **options)
    for _ in range(2):
        processors.schedule("twice", report, every=5)
    messages = [error.msg for error in check_registry() if error.id == "jobchains.E022"]
    expected = ["No job type 'schedules.reprot'. Did you mean 'schedules.report'?",
                "entry=False", "requires blockers", "is not a name", "given as a JobType or by its name",
                "kind", "kind", "declared twice", "declared twice"]  # fmt: skip
    assert [text in message for message, text in zip(messages, expected, strict=True)] == [True] * len(expected)
    with pytest.raises(TypeError, match=r"schedule\(\) does not take the argument crn\. Did you mean 'cron'\?"):
        processors.schedule("nightly", report, crn="0 3 * * *")


def test_an_input_without_the_key_of_a_limit_is_an_error(processors):
    @processors.register("schedules.limited", concurrency=Concurrency(1, key="tenant"))
    def limited(job): ...

    schedules.create("good", limited, every=5, input={"tenant": 1})
    processors.schedule("bad", limited, every=5, input={})
    problem = "Schedule 'bad': The concurrency of 'schedules.limited' has no key for this input"
    assert [error.msg.startswith(problem) for error in check_registry()] == [True]
    for call in (
        lambda: schedules.create("other", limited, every=5, input={}),
        lambda: schedules.update("good", input={}),
    ):
        with pytest.raises(InvalidSchedule, match="has no key") as caught:
            call()
        assert caught.value.argument == "input"
    assert [row.input for row in schedules.list()] == [{"tenant": 1}]


def test_a_key_that_is_a_function_is_evaluated_when_a_schedule_fires_or_is_created(processors, report):
    @processors.register("schedules.of_tenant", concurrency=Concurrency(1, key=lambda given: User.objects.get().pk))
    def of_tenant(job): ...

    processors.schedule("by tenant", of_tenant, every=5)
    processors.schedule("report", report, every=5)
    assert check_registry() == []
    Worker()
    with clock() as time:
        assert fire_schedules() == []
        time.advance(5)
        assert [chain.schedule_name for chain in fire_schedules()] == ["report"]
    problem = "The concurrency of 'schedules.of_tenant' has no key for this input"
    assert problem in schedules.get("by tenant").last_error
    with pytest.raises(InvalidSchedule, match=problem):
        schedules.create("other", of_tenant, every=5)


def test_a_name_in_two_slices_is_an_error(registry, processors, report):
    other = Processors()
    registry.add(other)
    other.schedule("nightly", report, every=5)
    processors.schedule("nightly", report, every=5)
    assert ["declared twice" in error.msg for error in check_registry()] == [True, True]


def test_without_cronsim_only_intervals_work(processors, report, monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    processors.schedule("often", report, every=5)
    assert check_registry() == []
    processors.schedule("nightly", report, cron="0 3 * * *")
    [error] = check_registry()
    assert "install django_jobchains[schedules]" in error.msg


def test_declarations_are_stored_with_their_defaults(processors, typed, report, settings):
    settings.TIME_ZONE = "Europe/Paris"
    processors.schedule("plain", "schedules.report", every=timedelta(minutes=5))
    processors.schedule(
        "full", typed, cron=" 0  3 * * * ", timezone=ZoneInfo("Asia/Kathmandu"), input=Report("day"), overlap="skip",
        on_missed="run_all", max_catch_up=3, jitter=20, queue="mail", priority=-5,
    )  # fmt: skip
    processors.schedule("utc", report, cron="0 3 * * *", timezone=UTC)
    assert check_registry() == []
    fire_schedules()
    full, plain, utc = schedules.list()
    assert (plain.type_name, plain.every, plain.cron, plain.timezone) == (
        "schedules.report", timedelta(minutes=5), None, "Europe/Paris",
    )  # fmt: skip
    assert (plain.overlap, plain.on_missed, plain.max_catch_up, plain.jitter) == ("allow", "run_once", 100, None)
    assert (plain.input, plain.queue, plain.priority, plain.source) == (None, None, None, "code")
    assert plain.next_tick_at - plain.anchor_at == timedelta(minutes=5)
    assert (full.input, full.cron, full.every, full.timezone) == ({"kind": "day"}, "0 3 * * *", None, "Asia/Kathmandu")
    assert (full.overlap, full.on_missed, full.max_catch_up) == ("skip", "run_all", 3)
    assert (full.jitter, full.queue, full.priority) == (timedelta(seconds=20), "mail", -5)
    assert utc.timezone == "UTC"
