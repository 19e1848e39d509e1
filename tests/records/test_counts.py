"""Counts and waits of records, and running them in a test."""

from datetime import UTC, datetime, timedelta
from datetime import timezone as datetime_timezone
from functools import partial

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.utils import timezone

from django_jobchains import records, testing
from django_jobchains.db.times import as_stored
from django_jobchains.monitoring import record_overview
from django_jobchains.processors import RescheduleJob
from django_jobchains.records import RecordProcessor, Requeue
from tests.records.models import LETTER_COLUMNS, Letter, Repository, Upload
from tests.support.notifiers import notifier, sent

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def make(state, **values):
    return Upload.objects.create(state=state, **values)


@pytest.mark.parametrize(("retry_after", "queued", "with_processing"), [(None, 2, 5), (60, 6, 9)])
def test_queued_records_are_counted(register, retry_after, queued, with_processing):
    register(retry_after=retry_after)
    for state, count in {"queued": 2, "processing": 3, "errored": 4, "failed": 5, "completed": 6, "other": 7}.items():
        for _ in range(count):
            make(state)
    found = records.queryset(Upload)
    assert (found.queued_count(), found.queued_count(include_processing=True)) == (queued, with_processing)
    assert found.filter(size=1).queued_count() == 0


def test_counts_use_the_columns_of_the_registration(processors):
    processors.records(Letter, columns=LETTER_COLUMNS)(lambda record, run: None)
    Letter.objects.create(code="a")
    assert records.queryset(Letter).queued_count() == 1
    assert records.queryset(Letter).max_duration_in_queue() >= timedelta()


def test_the_longest_wait_is_that_of_a_record_that_could_run(register):
    register(retry_after=600)
    now = timezone.now()

    def hours(**values):
        Upload.objects.all().delete()
        for state, times in values.items():
            make(state, **times)
        return round(records.queryset(Upload).max_duration_in_queue() / HOUR, 1)

    assert hours() == 0
    assert hours(queued={"queued_at": now - 2 * HOUR}) == 2
    assert hours(queued={"queued_at": now - 2 * HOUR, "process_after": now + HOUR}) == 0
    assert hours(queued={"queued_at": now - 3 * HOUR, "process_after": now - HOUR}) == 1
    assert hours(queued={"queued_at": now - HOUR, "process_after": now - 3 * HOUR}) == 1
    assert hours(errored={"finished_at": now - HOUR - timedelta(seconds=600)}) == 1
    assert hours(errored={"finished_at": now}) == 0
    assert hours(errored={"finished_at": None}) == 0
    assert hours(queued={"queued_at": now - 2 * HOUR, "cancel": True}) == 0
    assert hours(queued={"queued_at": now - 2 * HOUR, "process_after": now - HOUR, "cancel": True}) == 0
    assert hours(errored={"finished_at": now - 2 * HOUR, "cancel": True}) == 0
    assert hours(errored={"finished_at": now - 5 * HOUR, "process_after": now + HOUR}) == 0
    assert hours(processing={"queued_at": now - 2 * HOUR}, completed={"queued_at": now - 2 * HOUR}) == 0


def test_the_longest_wait_is_known_without_use_tz(register, settings):
    register(retry_after=600)
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Kathmandu", False
    make("queued")
    make("errored", finished_at=as_stored(datetime.now(UTC) - HOUR - timedelta(seconds=600), "default"))
    assert round(records.queryset(Upload).max_duration_in_queue() / HOUR, 1) == 1


def test_records_exist_in_states(register):
    register()
    make("failed")
    found = records.queryset(Upload)
    assert found.exists_in(["queued", "failed"])
    assert not found.exists_in(["queued", "errored"])
    assert found.exists_in("failed")
    with pytest.raises(ValueError, match="at least one state"):
        found.exists_in([])


@pytest.mark.parametrize("move", [records.cancel, records.requeue, records.retry])
def test_operations_take_instances_lists_and_querysets(register, move):
    register()
    made = [make("errored") for _ in range(6)]
    assert move(made[0]) == 1
    assert move(made[1:3]) == 2
    assert move(Upload.objects.filter(pk__in=[made[3].pk, made[4].pk]).order_by("-size")) == 2
    assert move(Upload.objects.filter(state="errored").order_by("-id")[:1]) == 1
    assert move([]) == move(Upload.objects.none()) == 0
    with pytest.raises(TypeError, match="instances of one model"):
        move([made[0], Repository(name="a")])


@pytest.mark.django_db(transaction=True)
def test_operations_have_async_twins(register):
    register()
    async_to_sync(use_async_twins)()


async def use_async_twins():
    upload = await Upload.objects.acreate(state="errored")
    assert await records.queryset(Upload).aexists_in(["errored"])
    assert await records.arequeue(Upload.objects.filter(pk=upload.pk), after=timezone.now() - HOUR) == 1
    assert await records.queryset(Upload).aqueued_count() == 1
    assert await records.queryset(Upload).amax_duration_in_queue() >= timedelta()
    assert await records.acancel(upload) == 1
    assert await records.aretry([upload]) == 1
    await records.anotify(Upload)
    for name in ("cancel", "requeue", "retry"):
        with pytest.raises(SynchronousOnlyOperation, match=rf"block the event loop: use 'await records\.a{name}\(…\)'"):
            getattr(records, name)(upload)


@pytest.mark.parametrize(
    ("after", "error", "problem"),
    [
        ("now", TypeError, "is not a datetime"),
        (HOUR, TypeError, "is not a datetime"),
        (datetime(2030, 1, 1), ValueError, r"has no time zone: use django\.utils\.timezone"),  # noqa: DTZ001
        (datetime.max.replace(tzinfo=datetime_timezone(-HOUR)), ValueError, "after the year 9999 in UTC"),
        (datetime.min.replace(tzinfo=datetime_timezone(HOUR)), ValueError, "before the year 1"),
    ],
)
def test_a_time_that_cannot_be_stored_is_refused(register, after, error, problem):
    def handle(record, run):
        for requeue in (run.requeue, partial(records.requeue, record), Requeue):
            with pytest.raises(error, match=problem):
                requeue(after=after)
        raise RescheduleJob(run_at=after)

    register(handle)
    make("queued")
    [outcome] = testing.run_due_jobs()
    assert (outcome.ending, outcome.error.split(":")[0]) == ("errored", "RescheduleJob")
    assert Upload.objects.get().process_after is None


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_only_after_a_commit(register):
    register()
    sent.clear()
    with notifier("RecordingNotifier"):
        for is_rolled_back in (True, False):
            with transaction.atomic():
                records.notify(Upload)
                transaction.set_rollback(is_rolled_back)
                assert sent == []
        assert sent == [("default", {"records.upload"})]


# The testing kit


def test_due_records_run_in_a_test_which_stays_usable_after_a_database_error(register):
    def handle(record, run):
        if record.size == 2:
            Repository.objects.create(name=None)
        with run.complete():
            Repository.objects.create(name="made")

    register(handle, order_by=["size"])
    for size in (2, 1):
        Upload.objects.create(size=size)
    first, second = testing.run_due_jobs()
    assert (first.record.size, first.record.state, first.ending, first.error) == (1, "completed", "completed", "")
    assert (second.record.state, second.ending, "IntegrityError" in second.error) == ("errored", "errored", True)
    assert Repository.objects.count() == 1


def test_errors_can_be_raised_and_retries_follow_the_clock_of_the_test(register):
    attempts = []

    def handle(record, run):
        attempts.append(run.attempt)
        if run.attempt == 1:
            raise KeyError("no")

    register(handle, retry_after=HOUR)
    make("queued")
    with testing.clock() as clock:
        with pytest.raises(AssertionError, match=r"(?s)records.upload \d+ was not completed.*KeyError"):
            testing.run_due_jobs(raise_errors=True)
        assert (testing.run_due_jobs(), attempts) == ([], [1])
        clock.advance(7200)
        assert [outcome.ending for outcome in testing.run_due_jobs()] == ["completed"]


def test_jobs_and_records_run_up_to_the_limit(processors):
    seen = []

    @processors.records(Upload)
    class Hooked(RecordProcessor[Upload]):
        def handle(self, record, run):
            seen.append("handle")

        def post_handle(self, record):
            seen.append(Upload.objects.get(pk=record.pk).state)

    note = processors.register("shop.note")(lambda job: None)
    for _ in range(2):
        make("queued")
    with transaction.atomic():
        note.enqueue()
    assert len(testing.run_due_jobs(limit=2)) == 2
    assert seen == ["handle", "completed"]
    assert len(testing.run_due_jobs()) == 1


def test_facts_are_about_the_records_of_the_queryset_and_stop_at_the_limit(processors):
    small = Upload.objects.filter(size__lt=10).select_related("repository").order_by("size")
    urgent = Upload.objects.filter(size__gte=10, repository__priority__gt=0).defer("execution_logs")
    processors.records(Upload, "small", queryset=small, retry_after=60)(lambda record, run: None)
    processors.records(Upload, "urgent", queryset=urgent, queue="fast")(lambda record, run: None)
    processors.records(Upload, "none", queryset=Upload.objects.none())(lambda record, run: None)
    high, other = Repository.objects.create(priority=1), Repository.objects.create()
    now = timezone.now()
    for state in ("queued", "processing", "failed", "failed", "completed"):
        make(state, size=1, queued_at=now - 2 * HOUR)
    make("errored", size=2, finished_at=now - HOUR)
    make("queued", size=20, repository=high, queued_at=now - 5 * HOUR)
    make("failed", size=20, repository=other)
    facts = {kind.name: kind for kind in record_overview()}
    shown = {name: (f.queued, f.processing, f.errored, f.failed, f.due) for name, f in facts.items()}
    assert shown == {"small": (2, 1, 1, 2, 2), "urgent": (1, 0, 0, 0, 1), "none": (0, 0, 0, 0, 0)}
    assert [round(facts[name].oldest_seconds / 3600) for name in ("small", "urgent", "none")] == [2, 5, 0]
    assert {kind.name: (kind.queued, kind.failed) for kind in record_overview(count_to=1)}["small"] == (1, 1)
