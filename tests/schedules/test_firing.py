"""Which chains the ticks of a schedule enqueue, with a clock that the test sets."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, schedules
from django_jobchains.declare.schedules import TickRule
from django_jobchains.models import Chain, Job, Schedule
from django_jobchains.processors import Concurrency, JobType, Processors, RunningJob
from django_jobchains.schedules import firing
from django_jobchains.telemetry.events import ScheduleFailed, ScheduleFired, TicksDropped
from django_jobchains.testing import fire_schedules, run_due_jobs
from tests.schedules.conftest import next_ticks, ticks_of
from tests.support.plans import cost_of, use_plans

pytestmark = pytest.mark.django_db


def test_a_tick_fires_once_with_its_time(processors, time, django_capture_on_commit_callbacks, events):
    seen = []

    @processors.register("schedules.next", entry=False)
    def last(job: RunningJob[int]) -> None:
        seen.append((job.type_name, job.schedule_name, job.scheduled_for))

    @processors.register("schedules.first", queue="mail", priority=3)
    def first(job: RunningJob[int]):
        seen.append((job.type_name, job.schedule_name, job.scheduled_for))
        return job.continue_with(last, 1)

    processors.schedule("nightly", first, cron="0 3 * * *", timezone="Europe/Berlin", input=7)
    time.set("2026-06-01 00:59:59")
    assert fire_schedules() == []
    time.set("2026-06-01 01:00:00.25")
    with django_capture_on_commit_callbacks(execute=True):
        [chain] = fire_schedules()
    assert fire_schedules() == []
    tick = datetime(2026, 6, 1, 1, tzinfo=UTC)
    assert (chain.type_name, chain.input, chain.schedule_name, chain.scheduled_for) == (
        "schedules.first", 7, "nightly", tick,
    )  # fmt: skip
    job = Job.objects.get(pk=chain.id)
    assert (job.queue, job.priority, job.schedule_name, job.scheduled_for) == ("mail", 3, "nightly", tick)
    run_due_jobs()
    assert seen == [("schedules.first", "nightly", tick), ("schedules.next", "nightly", tick)]
    assert chain.refresh().scheduled_for == tick
    [row] = schedules.list()
    assert (row.last_tick_at, row.last_chain_id) == (tick, chain.id)
    assert row.next_tick_at == tick + timedelta(days=1)
    [fired] = events.of(ScheduleFired)
    assert (fired.schedule_name, fired.type_name, fired.chain_id, fired.scheduled_for, fired.delay_seconds) == (
        "nightly", "schedules.first", chain.id, tick, 0.25,
    )  # fmt: skip
    assert [found.id for found in Chain.objects.of_schedule("nightly").page()] == [chain.id]
    assert [found.type_name for found in Job.objects.of_schedule("nightly").page()] == [
        "schedules.next", "schedules.first",
    ]  # fmt: skip


def test_other_chains_have_no_tick(processors, report):
    chain = report.enqueue()
    [outcome] = run_due_jobs()
    assert (chain.scheduled_for, chain.schedule_name, outcome.job.output) == (None, None, None)


def test_a_chain_of_a_failed_job_is_not_of_the_schedule(processors, time):
    @processors.register("schedules.alert")
    def alert(job):
        return str(job.scheduled_for)

    @processors.register("schedules.fails", max_attempts=1, on_failure=alert)
    def fails(job):
        raise ValueError

    processors.schedule("often", fails, every=10)
    fire_schedules()
    time.advance(seconds=10)
    fire_schedules()
    outcomes = run_due_jobs()
    assert [outcome.job.output for outcome in outcomes] == [None, "None"]


# Missed ticks


@pytest.mark.parametrize(
    ("on_missed", "now", "fired", "missed"),
    [
        # In time, and up to a minute late.
        ("run_once", "10:00:00", ["10:00:00"], 0),
        ("skip", "10:00:00", ["10:00:00"], 0),
        ("run_all", "10:00:00", ["10:00:00"], 0),
        ("skip", "10:01:00", ["10:00:00"], 0),
        # More than a minute late.
        ("run_once", "10:01:01", ["10:00:00"], 0),
        ("skip", "10:01:01", [], 1),
        ("run_all", "10:01:01", ["10:00:00"], 0),
        # Later ticks are due, too.
        ("run_once", "10:15:30", ["10:15:00"], 3),
        ("skip", "10:15:30", ["10:15:00"], 3),
        ("skip", "10:17:00", [], 4),
        ("run_all", "10:15:30", ["10:05:00", "10:10:00", "10:15:00"], 1),
    ],
)
def test_missed_ticks(
    processors, report, time, on_missed, now, fired, missed, events, django_capture_on_commit_callbacks
):
    processors.schedule("often", report, cron="*/5 * * * *", timezone="UTC", on_missed=on_missed, max_catch_up=3)
    time.set("2026-06-01 09:55:01")
    fire_schedules()
    time.set(f"2026-06-01 {now}")
    with django_capture_on_commit_callbacks(execute=True):
        assert ticks_of(fire_schedules()) == fired
    assert sum(event.count for event in events.of(TicksDropped) if event.outcome == "missed") == missed
    assert next_ticks()["often"] > f"06-01 {now}"
    assert fire_schedules() == []


def test_many_missed_ticks_fire_over_several_transactions(processors, report, time, monkeypatch):
    monkeypatch.setattr(firing, "MAX_CHAINS", 2)
    processors.schedule("often", report, every=10, on_missed="run_all")
    time.set("2026-06-01 10:00:00")
    fire_schedules()
    time.set("2026-06-01 10:00:52")
    assert ticks_of(fire_schedules()) == ["10:00:10", "10:00:20", "10:00:30", "10:00:40", "10:00:50"]
    assert next_ticks() == {"often": "06-01 10:01:00"}


def test_a_paused_schedule_misses_nothing_and_keeps_its_anchor(processors, report, time):
    processors.schedule("interval", report, every=60, on_missed="run_all")
    processors.schedule("nightly", report, cron="0 3 * * *", timezone="UTC", on_missed="run_all")
    time.set("2026-06-01 10:00:07")
    fire_schedules()
    schedules.pause("interval", "nightly")
    schedules.pause("nightly")
    assert [row.state for row in schedules.list()] == ["paused", "paused"]
    time.set("2026-06-05 10:00:30")
    assert fire_schedules() == []
    schedules.resume("nightly", "interval")
    assert fire_schedules() == []
    assert next_ticks() == {"interval": "06-05 10:01:07", "nightly": "06-06 03:00:00"}
    time.set("2026-06-05 10:01:08")
    schedules.resume("interval")  # which changes nothing: it is not paused
    assert ticks_of(fire_schedules()) == ["10:01:07"]


# Overlap


def open_chain(processors, time, **options):
    @processors.register("schedules.fails", max_attempts=1)
    def fails(job):
        raise ValueError

    processors.schedule("often", fails, cron="* * * * *", timezone="UTC", **options)
    time.set("2026-06-01 10:00:30")
    fire_schedules()
    time.set("2026-06-01 10:01:00")
    [chain] = fire_schedules()
    return chain


def test_overlap_allow(processors, time):
    open_chain(processors, time)
    time.set("2026-06-01 10:02:00")
    assert ticks_of(fire_schedules()) == ["10:02:00"]


def test_overlap_skip(processors, time, events, django_capture_on_commit_callbacks):
    open_chain(processors, time, overlap="skip")
    time.set("2026-06-01 10:02:00")
    with django_capture_on_commit_callbacks(execute=True):
        assert fire_schedules() == []
    assert [(event.outcome, event.count) for event in events.of(TicksDropped)] == [("skipped", 1)]
    run_due_jobs()  # The chain fails, which does not stop its schedule.
    time.set("2026-06-01 10:03:00")
    assert ticks_of(fire_schedules()) == ["10:03:00"]


def test_overlap_skip_after_an_outage_fires_the_oldest_of_all(processors, time):
    chain = open_chain(processors, time, overlap="skip", on_missed="run_all")
    chains.delete(chain.id)
    time.set("2026-06-01 10:05:00")
    assert ticks_of(fire_schedules()) == ["10:02:00"]
    assert next_ticks() == {"often": "06-01 10:06:00"}


@pytest.mark.parametrize("end", ["fails", "is cancelled", "completes"])
def test_overlap_queue_lets_one_chain_wait(processors, time, end):
    first = open_chain(processors, time, overlap="queue")
    time.set("2026-06-01 10:02:00")
    [second] = fire_schedules()
    time.set("2026-06-01 10:04:00")
    assert fire_schedules() == []
    assert next_ticks() == {"often": "06-01 10:05:00"}
    assert (second.scheduled_for.minute, second.status) == (2, "blocked")
    if end == "fails":
        run_due_jobs(1)
    elif end == "completes":
        chains.complete(first.id)
    else:
        chains.cancel(first.id)
    assert second.refresh().status == "pending"
    time.set("2026-06-01 10:05:00")
    [third] = fire_schedules()
    assert third.status == "blocked"


def test_overlap_queue_of_a_type_that_accepts_no_such_blockers(processors, time):
    @processors.register("schedules.joins", blockers=["schedules.fails"], on_blocker_failure="fail")
    def joins(job): ...

    processors.schedule("joining", joins, every=10, overlap="queue")
    time.set("2026-06-01 10:00:00")
    fire_schedules()
    statuses = []
    for _ in range(2):
        time.advance(seconds=10)
        statuses += [chain.status for chain in fire_schedules()]
    assert statuses == ["pending", "blocked"]


@pytest.mark.parametrize(("overlap", "statuses"), [("allow", ["pending"]), ("skip", []), ("queue", ["blocked"])])
def test_a_chain_of_run_now_is_the_previous_one(processors, report, time, overlap, statuses):
    processors.schedule("often", report, cron="* * * * *", timezone="UTC", overlap=overlap)
    time.set("2026-06-01 10:00:30")
    fire_schedules()
    chain = schedules.run_now("often")
    time.set("2026-06-01 10:01:00")
    fired = fire_schedules()
    assert [each.status for each in fired] == statuses
    chains.complete(chain.id)
    assert [each.refresh().status for each in fired] == ["pending"] * len(fired)


# Jitter


def test_jitter_delays_the_chain_and_not_the_tick(processors, report, time, monkeypatch):
    monkeypatch.setattr(firing.random, "uniform", lambda least, most: most / 2)
    processors.schedule("often", report, every=60, jitter=timedelta(seconds=20))
    start = time.set("2026-06-01 10:00:00")
    fire_schedules()
    time.set("2026-06-01 10:01:00")
    [chain] = fire_schedules()
    assert chain.scheduled_for == start + timedelta(minutes=1)
    assert Job.objects.get(pk=chain.id).run_at == start + timedelta(minutes=1, seconds=10)
    assert next_ticks() == {"often": "06-01 10:02:00"}


# Errors


def test_an_error_of_one_schedule_does_not_affect_the_others(processors, report, time, events):
    processors.register("schedules.strict", input=int)(lambda job: None)
    processors.register("schedules.gone")(lambda job: None)
    for name in ("a", "z"):
        processors.schedule(name, report, every=10)
    processors.schedule("invalid", "schedules.strict", every=10, input=3)
    processors.schedule("unknown", "schedules.gone", every=10)
    time.set("2026-06-01 10:00:00")
    fire_schedules()
    Schedule.objects.filter(name="invalid").update(input="text")
    Schedule.objects.filter(name="unknown").update(type_name="schedules.other")
    time.set("2026-06-01 10:00:10")
    assert [chain.schedule_name for chain in fire_schedules()] == ["a", "z"]
    errors = {row.name: row.last_error for row in schedules.list() if row.last_error}
    assert errors.keys() == {"invalid", "unknown"}
    assert errors["invalid"].startswith("InvalidInput: ")
    assert errors["unknown"].startswith("JobTypeNotFound: No job type 'schedules.other'.")
    assert {event.schedule_name for event in events.of(ScheduleFailed)} == {"invalid", "unknown"}
    assert [row.state for row in schedules.list()][1] == "orphaned"  # no worker runs
    fire_schedules()
    assert len(events.of(ScheduleFailed)) == 2  # the same error is not logged again

    # The tick is kept, and fires when the error is gone.
    Schedule.objects.filter(name="invalid").update(input=5)
    assert [(chain.input, chain.schedule_name) for chain in fire_schedules()] == [(5, "invalid")]
    assert schedules.get("invalid").last_error is None


def test_an_error_of_the_database_in_the_projects_code_does_not_affect_the_others(processors, report, time):
    def upgraded(given):
        return Schedule.objects.extra(where=["no_such_column"]).count()

    processors.register("schedules.old", input=int, upgrade_input=upgraded)(lambda job: None)
    for name in ("a", "z"):
        processors.schedule(name, report, every=10)
    processors.schedule("old", "schedules.old", every=10, input=3)
    fire_schedules()
    Schedule.objects.filter(name="old").update(input="three")
    time.advance(seconds=10)
    assert [chain.schedule_name for chain in fire_schedules()] == ["a", "z"]
    [old] = [row for row in schedules.list() if row.last_error]
    assert old.name == "old"
    assert "no_such_column" in old.last_error


def test_an_error_of_the_database_is_found_and_the_others_fire(processors, report, time, events, monkeypatch):
    names = [f"s{number:02}" for number in range(20)]
    for name in names:
        processors.schedule(name, report, every=10, input=name)
    fire_schedules()
    time.advance(seconds=10)
    create = firing.create_chains

    def fail_for_some(items, using):
        created = create(items, using)
        if any(item.schedule_name in ("s03", "s17") for item in items):
            with connection.cursor() as cursor:
                cursor.execute("SELECT * FROM no_such_table")
        return created

    monkeypatch.setattr(firing, "create_chains", fail_for_some)
    fired = fire_schedules()
    assert sorted(chain.input for chain in fired) == [name for name in names if name not in ("s03", "s17")]
    assert Job.objects.count() == 18
    assert {row.name for row in schedules.list() if row.last_error} == {"s03", "s17"}
    monkeypatch.setattr(firing, "create_chains", create)
    assert sorted(chain.input for chain in fire_schedules()) == ["s03", "s17"]


def test_what_the_transaction_undoes_fires_again(processors, report, time):
    processors.schedule("often", report, every=10)
    fire_schedules()
    time.advance(seconds=10)
    with transaction.atomic():
        assert len(fire_schedules()) == 1
        transaction.set_rollback(True)
    assert len(fire_schedules()) == 1
    assert fire_schedules() == []


def test_the_number_of_statements_does_not_depend_on_the_number_of_schedules(processors, report, time):
    for number in range(30):
        processors.schedule(f"s{number:02}", report, every=10, overlap="skip" if number % 2 else "allow")
    fire_schedules()
    for _ in range(2):
        time.advance(seconds=10)
        fire_schedules()
        run_due_jobs()
    time.advance(seconds=10)
    with CaptureQueriesContext(connection) as captured:
        assert len(fire_schedules()) == 30
    statements = [query["sql"].split()[0] for query in captured]
    assert len(statements) < 25
    assert statements.count("INSERT") == 2  # the declarations, and the jobs


def test_schedules_that_are_due_together_differ_in_what_they_do_not_share(processors, report, time):
    """Rules, types and inputs of a transaction are examined once, however many schedules have them."""
    time.set("2026-10-24 00:30:00")
    same = {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}
    processors.schedule("a", report, **same, input=1)
    processors.schedule("b", report, **same, input=2, queue="mail")
    processors.schedule("c", report, **same, input=1, queue="mail", priority=3)
    processors.schedule("d", report, cron="0 2 * * *", timezone="Europe/London", input=1, on_missed="run_all")
    processors.schedule("e", report, cron="0 1 * * *", timezone="UTC", input=1)
    processors.schedule("f", report, every=1800, input=1)
    processors.schedule("g", report, cron="0 3 * * *", timezone="Africa/Johannesburg", input=1)
    fire_schedules()
    time.set("2026-10-24 01:00:00")
    fired = {chain.schedule_name: Job.objects.get(pk=chain.id) for chain in fire_schedules()}
    assert {name: (job.input, job.queue, job.priority, job.chain_id == job.id) for name, job in fired.items()} == {
        "a": (1, "default", 0, True),
        "b": (2, "mail", 0, True),
        "c": (1, "mail", 3, True),
        "d": (1, "default", 0, True),
        "e": (1, "default", 0, True),
        "f": (1, "default", 0, True),
        "g": (1, "default", 0, True),
    }
    assert next_ticks() == {
        "a": "10-25 02:00:00",
        "b": "10-25 02:00:00",
        "c": "10-25 02:00:00",
        "d": "10-25 02:00:00",
        "e": "10-25 01:00:00",
        "f": "10-24 01:30:00",
        "g": "10-25 01:00:00",
    }


def test_schedules_of_a_limited_type_have_the_limit_keys_of_their_own_inputs(processors, time):
    @processors.register("schedules.sync", input=dict[str, str], concurrency=Concurrency(1, key="tenant"))
    def sync(job):
        pass

    processors.schedule("a", sync, every=60, input={"tenant": "a"})
    processors.schedule("b", sync, every=60, input={"tenant": "b"})
    fire_schedules()
    time.advance(seconds=60)
    fired = {chain.schedule_name: chain.id for chain in fire_schedules()}
    for name in ("a", "b"):
        enqueued = sync.enqueue({"tenant": name})
        keys = Job.objects.filter(pk__in=[fired[name], enqueued.id]).values_list("limit_key", "concurrency_key")
        assert len(set(keys)) == 1
    assert Job.objects.values("limit_key").distinct().count() == 2


def test_three_times_as_many_schedules_cost_three_times_as_much(processors, report, time):
    for number in range(400):
        processors.schedule(f"s{number:03}", report, every=10, input=number)
    now = time.set("2026-06-01 10:00:00")
    fire_schedules()
    if connection.vendor == "postgresql":
        use_plans("auto")
    costs = []
    for first, end in (("s000", "s100"), ("s100", "s400")):
        Schedule.objects.filter(name__gte=first, name__lt=end).update(next_tick_at=now)
        costs.append(cost_of(fire_schedules))
    assert Job.objects.count() == 400
    assert 0 < costs[1] < 4 * costs[0], costs


def counted(method, calls):
    def call(*args):
        calls[method.__name__] += 1
        return method(*args)

    return call


def test_a_rule_and_an_input_are_examined_once_in_a_transaction(processors, report, time, monkeypatch):
    calls = Counter()
    for owner, name in ((TickRule, "due"), (JobType, "decode_input")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), calls))
    for number in range(30):
        processors.schedule(f"s{number:02}", report, cron=f"{number % 2 * 30} * * * *", timezone="UTC", input=5)
    time.set("2026-06-01 10:00:01")
    fire_schedules()
    time.set("2026-06-01 11:00:00")
    assert len(fire_schedules()) == 30
    assert calls == {"due": 2, "decode_input": 1}


def test_the_errors_of_many_schedules_are_stored_with_one_statement(processors, report, time, events):
    for number in range(30):
        processors.schedule(f"s{number:02}", report, every=10)
    fire_schedules()
    Schedule.objects.exclude(name="s07").update(type_name="schedules.other")
    time.advance(seconds=10)
    with CaptureQueriesContext(connection) as captured:
        assert [chain.schedule_name for chain in fire_schedules()] == ["s07"]
    assert sum("last_error =" in query["sql"] and "last_error_at = clock" in query["sql"] for query in captured) == 1
    assert len(captured) < 25
    assert sum(row.last_error is not None for row in schedules.list()) == 29
    assert len(events.of(ScheduleFailed)) == 29


def test_each_slice_can_schedule_types_of_others(registry, report, time):
    other = Processors()
    registry.add(other)
    other.schedule("often", "schedules.report", every=10)
    fire_schedules()
    time.advance(seconds=10)
    assert [chain.schedule_name for chain in fire_schedules()] == ["often"]
