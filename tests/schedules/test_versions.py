"""Rolling deploys: two versions of the code that store and fire schedules at the same time."""

from dataclasses import dataclass

import pytest

from django_jobchains import schedules
from django_jobchains.models import Schedule
from django_jobchains.processors import Processors
from tests.schedules.conftest import next_ticks, ticks_of
from tests.support.worker_rows import worker

pytestmark = pytest.mark.django_db


def slice_with(**rules):
    """Return a slice with a type and schedules by name; a rule is a cron expression or seconds."""
    part = Processors()
    part.register("schedules.report")(lambda job: None)
    for name, rule in rules.items():
        options = {"cron": rule, "timezone": "UTC"} if isinstance(rule, str) else {"every": rule}
        part.schedule(name, "schedules.report", on_missed="run_all", **options)
    return part


def test_the_same_version_keeps_anchors_and_ticks(version, time):
    time.set("2026-06-01 10:00:07")
    version(slice_with(interval=60, hourly="0 * * * *"))
    before = list(Schedule.objects.order_by("name").values())
    time.set("2026-06-01 10:00:50")
    version(slice_with(interval=60, hourly="0 * * * *"))
    assert list(Schedule.objects.order_by("name").values()) == before


def test_another_version_keeps_the_anchors_and_ticks_of_what_it_does_not_change(version, time):
    time.set("2026-06-01 10:00:07")
    version(slice_with(interval=60, changed=60, hourly="0 * * * *", moved="0 * * * *"))
    schedules.pause("hourly")
    time.set("2026-06-01 10:00:50")
    new = version(slice_with(interval=60, changed=90, hourly="0 * * * *", moved="30 * * * *"))
    assert next_ticks() == {
        "interval": "06-01 10:01:07",
        "changed": "06-01 10:02:20",
        "hourly": "06-01 11:00:00",
        "moved": "06-01 10:30:00",
    }
    assert schedules.get("hourly").is_paused
    time.set("2026-06-01 10:01:30")
    assert ticks_of(new.fire().chains) == ["10:01:07"]
    assert next_ticks()["interval"] == "06-01 10:02:07"


def test_a_changed_rule_does_not_drop_a_tick_that_is_due(version, time):
    time.set("2026-06-01 09:30:00")
    version(slice_with(moved="0 * * * *"))
    time.set("2026-06-01 10:00:01")
    new = version(slice_with(moved="30 * * * *"))
    assert ticks_of(new.fire().chains) == ["10:00:00"]
    assert next_ticks() == {"moved": "06-01 10:30:00"}


def test_two_versions_fire_each_tick_once(version, time):
    """Each fires what its code declares, by the rule that the version that started last has stored."""
    time.set("2026-06-01 10:00:00")
    old = version(slice_with(same=60, changed="5 * * * *", removed=60))
    new = version(slice_with(same=60, changed="1 * * * *", added=60))
    fired = []
    for minute in range(1, 6):
        time.set(f"2026-06-01 10:{minute:02}:00")
        both = (old, new) if minute % 2 else (new, old)
        fired += [(chain.schedule_name, minute) for each in both for chain in each.fire().chains]
    assert sorted(fired) == sorted(
        [(name, minute) for name in ("same", "removed", "added") for minute in range(1, 6)] + [("changed", 1)]
    )
    # When the old version has gone, nothing fires what only it declared. Its tick waits.
    time.set("2026-06-01 10:06:00")
    result = new.fire()
    assert {chain.schedule_name for chain in result.chains} == {"same", "added"}
    assert result.failed.keys() == {"removed"}
    assert new.fire(["removed"]).count == 0
    # It comes back, as after a rollback.
    old = version(slice_with(same=60, changed="5 * * * *", removed=60))
    time.set("2026-06-01 10:07:00")
    assert [chain.schedule_name for chain in old.fire().chains] == ["removed", "removed", "same"]


def test_schedules_of_the_admin_are_fired_by_versions_that_know_the_type(version, time):
    version(slice_with())
    plain, other = version(slice_with()), version(Processors())
    time.set("2026-06-01 10:00:00")
    Schedule.objects.create(
        name="mine", type_name="schedules.report", every_seconds=60, timezone="UTC", overlap="allow",
        on_missed="run_once", max_catch_up=1, source="admin", created_at=time.set("2026-06-01 10:00:00"),
        anchor_at=time.set("2026-06-01 10:00:00"), next_tick_at=time.set("2026-06-01 10:01:00"), input=None,
    )  # fmt: skip
    assert other.fire().chains == []
    assert schedules.get("mine").last_error.startswith("JobTypeNotFound")
    assert len(plain.fire().chains) == 1
    assert schedules.get("mine").last_error is None


def test_a_version_that_is_gone_leaves_its_schedules_to_those_that_declare_them(version, time):
    time.set("2026-06-01 10:00:00")
    old = version(slice_with(moved="5 * * * *", removed=60))
    new = version(slice_with(moved="1 * * * *", added=60))
    old.declared.store([new.declared.digest, old.declared.digest])  # while both are alive
    assert next_ticks()["moved"] == "06-01 10:01:00"
    old.declared.store([old.declared.digest])
    assert next_ticks()["moved"] == "06-01 10:05:00"
    assert Schedule.objects.get(name="added").declarations == new.declared.digest


def test_a_schedule_that_no_live_worker_declares_is_orphaned(version, time, store):
    old = version(slice_with(same=60, removed=60))
    new = version(slice_with(same=60, added=60))
    states = {}
    for name, digests in {"both": (old, new), "new": (new,), "other": (), "none": None}.items():
        for row in ("old", "new", "idle"):
            store.workers.leave(row)
        if digests is not None:
            worker(store, "idle")
        for index, each in enumerate(digests or ()):
            worker(store, ("old", "new")[index], schedules=each.declared.digest)
        states[name] = {row.name: row.state for row in schedules.list()}
    active, orphaned = "active", "orphaned"
    assert states == {
        "both": {"added": active, "removed": active, "same": active},
        "new": {"added": active, "removed": orphaned, "same": active},
        "other": {"added": orphaned, "removed": orphaned, "same": orphaned},
        "none": {"added": orphaned, "removed": orphaned, "same": orphaned},
    }
    assert [row.due_at is None for row in schedules.list()] == [True] * 3


@dataclass
class Old:
    a: int


@dataclass
class New(Old):
    b: int


def test_a_version_passes_on_the_input_that_another_one_has_stored(version, time):
    """The old version's type ignores the field that the new one has added."""
    versions = []
    for value in (Old(1), New(1, 2)):
        part = Processors()
        part.register("schedules.report", input=type(value))(lambda job: None)
        part.schedule("often", "schedules.report", every=60, input=value)
        versions.append(version(part))
    time.advance(minutes=1, seconds=1)
    [chain] = versions[0].fire().chains
    assert chain.refresh().input == {"a": 1, "b": 2}
