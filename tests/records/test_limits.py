"""Limits of records that hold in all workers: their declarations, and running workers."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace

import pytest
from django.db import models
from django.db.models import Q

from django_jobchains import limits
from django_jobchains.declare.limits import TypeLimits
from django_jobchains.exceptions import InvalidDeclaration
from django_jobchains.notifications import job_scheduled
from django_jobchains.processors import Concurrency, Processors, Rate
from django_jobchains.records import RecordProcessor
from django_jobchains.records.checks import problems_of
from django_jobchains.testing import clock, run_due_jobs
from django_jobchains.worker.caretakers import RecordResetter
from tests.records.conftest import Waiting
from tests.records.models import Upload
from tests.support.waiting import stays, until

OBSERVATION_SECONDS = 0.3
pytestmark = pytest.mark.django_db(transaction=True)


def running():
    return sorted(Upload.objects.filter(state="processing").values_list("size", flat=True))


def completed():
    return Upload.objects.filter(state="completed").count()


def add(*sizes, **values):
    for size in sizes:
        Upload.objects.create(size=size, **values)


# Declarations


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 2}, "concurrency=2 is not a Concurrency"),
        ({"concurrency": Concurrency(2, group="gateway")}, "group='gateway' is for job types"),
        ({"concurrency": Concurrency(2, key=len)}, "is a function: for records, pass the name of a field"),
        ({"fair": len}, "is a function: for records, pass the name of a field"),
        ({"fair": "a field"}, "is not the name of a field"),
        ({"concurrency": Concurrency(2, key="size"), "fair": "result"}, "fair='result' is not the key of the limit"),
        ({"rate": 2}, "rate=2 is not a Rate"),
        ({"rate": Rate(2, per=60, key=len)}, "is a function: for records, pass the name of a field"),
        (
            {"concurrency": Concurrency(2, key="size"), "rate": Rate(2, per=60, key="result")},
            "key='result' is not the key of the limit, 'size'",
        ),
    ],
)
def test_limits_that_records_cannot_have_are_errors(register, options, problem):
    with pytest.raises(InvalidDeclaration, match=r"records\.upload") as error:
        register(**options)
    assert problem in str(error.value)


def test_a_slice_sets_the_limits_of_its_records():
    def limits_of(options, **of_slice):
        part = Processors(**of_slice)
        part.records(Upload, **options)(lambda record, run: None)
        return part.record_types["records.upload"].limits

    keyed = Concurrency(2, key="size")
    assert limits_of({}) is None
    assert limits_of({}, concurrency=keyed) == limits_of({"concurrency": keyed}) == TypeLimits(keyed, None, None)
    assert limits_of({}, concurrency=Concurrency(3), fair="size") == TypeLimits(Concurrency(3), None, "size")
    for option, limit in (("concurrency", keyed), ("rate", Rate(2, per=60, key="size"))):
        own = limits_of({option: limit}, concurrency=Concurrency(3), fair="result")
        assert (own.field, own.fair) == ("size", None)
    assert limits_of({"rate": Rate(3, per=60)}, rate=Rate(2, per=60)).rate.limit == 3
    with pytest.raises(InvalidDeclaration, match="group"):
        limits_of({}, concurrency=Concurrency(2, group="gateway"))


@pytest.mark.parametrize("key", ["nothing", "execution_logs", "details", "queued_at"])
@pytest.mark.parametrize("limit", [Concurrency(2), Rate(2, per=60)])
def test_a_key_that_is_not_a_column_with_keys_is_an_error_of_the_system_check(register, processors, key, limit):
    register(**{type(limit).__name__.lower(): replace(limit, key=key)})
    [problem] = problems_of(processors.record_types["records.upload"])
    assert problem.id == "jobchains.E024"
    assert repr(key) in problem.msg


@pytest.mark.parametrize("key", ["repository", "repository_id"])
def test_a_missing_index_of_keys_is_a_warning(register, processors, monkeypatch, key):
    register(fair=key)
    [problem] = problems_of(processors.record_types["records.upload"])
    assert problem.id == "jobchains.W012"
    assert 'fields=["repository", "state", "process_after", "queued_at"]' in problem.hint
    for states, count in ((["queued"], 1), (["queued", "errored"], 0)):
        index = models.Index(fields=["repository", "state"], condition=Q(state__in=states), name="turns")
        monkeypatch.setattr(Upload._meta, "indexes", [*Upload._meta.indexes, index])
        assert len(list(problems_of(processors.record_types["records.upload"]))) == count


# Workers


@pytest.fixture
def held(make_worker):
    """A handler that waits. It is released before the workers of the test are stopped."""
    handler = Waiting(heeds=False)
    yield handler
    handler.released.set()


def test_workers_keep_a_limit_together(register, start_worker, held):
    register(held, concurrency=Concurrency(2, key="size"), poll_every=0.02)
    add(1, 1, 1, 1, 1, 2)
    for _ in range(2):
        start_worker(slots=4)
    until(lambda: running() == [1, 1, 2])
    assert stays(lambda: running() == [1, 1, 2], OBSERVATION_SECONDS)
    held.released.set()
    until(lambda: completed() == 6)


def test_a_free_place_is_used_by_other_workers_at_once(register, start_worker, held):
    """Not after the interval, which is a minute."""
    register(held, concurrency=Concurrency(1), poll_every=60)
    add(1)
    start_worker(slots=1, max_jobs=1)
    held.until_started()
    add(2)
    start_worker(slots=1)
    assert stays(lambda: running() == [1], OBSERVATION_SECONDS)
    held.released.set()
    until(lambda: completed() == 2, 15)


def test_workers_are_notified_of_the_places_of_ended_records(register, make_worker, sent):
    register(concurrency=Concurrency(1))
    add(1)
    make_worker().run_until_idle(20)
    assert [subjects for _, subjects in sent] == [{"records.upload"}]


def test_workers_are_notified_of_the_places_of_records_that_are_reset(register, make_worker, sent, store, monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.caretakers.locked_seconds", lambda kind: 0)
    register(concurrency=Concurrency(1))
    add(1, state="processing", last_heartbeat_at=store.stats.time_ago(3_600))
    RecordResetter(make_worker().components.context).step()
    assert [subjects for _, subjects in sent] == [{"records.upload"}]


def test_records_go_round_the_keys(register, make_worker):
    """One key has many records, and others have few."""
    order = []
    register(lambda record, run: order.append(record.size), fair="size")
    add(*[0] * 300, *[key for key in range(1, 20) for _ in range(3)])
    make_worker(slots=2).run_until_idle(60)
    assert len(order) == 357
    last = max(number for number, key in enumerate(order) if key)
    assert last < 150


def test_limited_records_run_in_tests(register):
    register(concurrency=Concurrency(1, key="size"))
    add(1, 1, 2)
    run_due_jobs()
    assert completed() == 3


def test_records_without_limits_are_dequeued_as_before(register, make_worker, store, monkeypatch):
    register()
    monkeypatch.setattr(store.record_limits, "dequeue", None)
    add(1, 1)
    make_worker().run_until_idle(20)
    assert completed() == 2


def test_the_condition_of_pre_dequeue_applies_to_each_key(processors, make_worker):
    @processors.records(Upload, concurrency=Concurrency(1, key="size"))
    class Convert(RecordProcessor):
        def pre_dequeue(self):
            return Q(result="yes")

        def handle(self, record, run):
            pass

    add(1, 2, result="no")
    add(1, 3, result="yes")
    make_worker(slots=1, poll_seconds=0.05).run_until_idle(20)
    assert completed() == 2


def test_workers_start_records_at_their_rate(register, start_worker):
    """Two workers wait for each start, not for the interval of their queries, which is a minute."""
    register(rate=Rate(10, per=1, key="size"), poll_every=60)
    add(1, 1, 1, 1, 2)
    for _ in range(2):
        start_worker(slots=4)
    until(lambda: completed() == 5, 20)
    starts = sorted(Upload.objects.filter(size=1).values_list("started_at", flat=True))
    assert all(later - earlier >= timedelta(seconds=0.1) for earlier, later in pairwise(starts))


@pytest.mark.parametrize("key", ["size", None])
def test_a_lane_queries_again_when_its_rate_allows_it(register, make_worker, key):
    """Until then it does not query."""
    register(rate=Rate(1, per=30, key=key), poll_every=60)
    add(1, 1)
    lane = make_worker().components.records.lanes["records.upload"]
    for _ in range(1 if key is None else 2):  # With keys, others may start at once.
        assert lane.seconds_to_next() == 0
        list(lane.dequeue(4))
    assert 20 < lane.seconds_to_next() <= 30
    assert lane.room() == 0
    lane.on_hint(job_scheduled("records.upload"))
    list(lane.dequeue(4))
    assert 20 < lane.seconds_to_next() <= 30
    assert Upload.objects.filter(state="processing").count() == 1


@pytest.mark.parametrize(("has_begun", "left"), [(False, 2), (True, 0)])
def test_only_records_that_did_not_begin_are_refunded(register, make_worker, has_begun, left):
    register(rate=Rate(1, per=3_600, burst=2))
    add(1, 1, 1)
    records = make_worker().components.records
    lane = records.lanes["records.upload"]
    attempts = [attempt for found in lane.dequeue(2) for attempt in found]
    assert len(attempts) == 2
    if has_begun:
        for attempt in attempts:
            records.writer.put(attempt.hand_back())
    else:
        records.hand_back(attempts)
    records.writer.step()
    assert Upload.objects.filter(state="queued").count() == 3
    assert sum(len(found) for found in lane.dequeue(2)) == left


def test_a_record_that_gets_its_child_process_while_the_worker_stops_is_refunded(register, make_worker):
    register(rate=Rate(1, per=3_600), isolation="process")
    add(1)
    records = make_worker().components.records
    lane = records.lanes["records.upload"]
    [[attempt]] = lane.dequeue(1)
    attempt.pool = SimpleNamespace(acquire=lambda: None, release=lambda worker: None)
    attempt.signal.abort("worker_stopping")
    attempt.run()
    records.writer.step()
    [[again]] = lane.dequeue(1)
    assert again.key == (attempt.key[0], attempt.key[1] + 1)


def test_a_rate_of_records_is_overridden_and_holds_in_tests(register):
    register(rate=Rate(1, per=60, key="size", group="gateway"))
    add(1, 1, 2)
    with clock() as time:
        assert len(run_due_jobs()) == 2
        assert run_due_jobs() == []
        time.advance(60)
        limits.set("gateway", rate=0)
        assert run_due_jobs() == []
        limits.set("gateway", rate=6)
        assert len(run_due_jobs()) == 1
        add(1)
        time.advance(10)
        assert len(run_due_jobs()) == 1


def test_records_and_types_of_a_group_need_the_same_rate(register, processors, registry):
    register(rate=Rate(1, per=60, key="size", group="gateway"))
    processors.register("limits.sync", rate=Rate(2, per=60, group="gateway"))(lambda job: None)
    [problem] = registry.limit_problems()
    assert "'limits.sync' and 'records.upload' share the group 'gateway', but have different rates" in problem
