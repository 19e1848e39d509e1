"""The named filters of ``Job.objects`` and ``Chain.objects``, alone and combined."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from django_jobchains import chains
from django_jobchains.db.ids import first_id_at
from django_jobchains.db.times import Times
from django_jobchains.models import Chain, Job
from django_jobchains.models.jobs import shown_status
from django_jobchains.processors import JobType
from django_jobchains.statuses import Status
from tests.support.chain_shapes import MORNING, SHAPES, all_of, mail, pack, rows, ship, steps
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db
MODELS = pytest.mark.parametrize("model", [Job, Chain])
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def shapes():
    """Create a chain in each state, and the chain that blocks the blocked one."""
    made = {name: make() for name, make in SHAPES.items()}
    return made | {"blocker": Chain.objects.get(type_name="shop.mail")}


def names(shapes, found):
    by_id = {chain.id: name for name, chain in shapes.items()}
    return {by_id[chain.pk] for chain in found}


CHAINS_WITH_STATUS = {
    "pending": {"pending", "continued", "blocker"},
    "running": {"running"},
    "blocked": {"blocked"},
    "completed": {"completed", "completed_in_three_steps", "completed_without_output"},
    "failed": {"failed"},
    "cancelled": {"cancelled"},
}


def test_chains_have_the_status_of_their_last_job_and_jobs_their_own(shapes):
    for status in Status:
        assert names(shapes, Chain.objects.with_status(status)) == CHAINS_WITH_STATUS[status]
        assert set(Job.objects.with_status(str(status))) == {job for job in Job.objects.all() if job.status == status}
    assert names(shapes, Chain.objects.with_status("failed", "cancelled")) == {"failed", "cancelled"}
    assert names(shapes, Chain.objects.incomplete()) == {"pending", "continued", "blocker", "running", "blocked"}
    assert {job.status for job in Job.objects.incomplete()} == {"pending", "running", "blocked"}


@MODELS
def test_every_shown_status_is_a_filter(model, shapes):
    _later, stopping, expired = (pack.enqueue(delay=delay) for delay in (60, 0, 0))
    Job.objects.filter(pk=stopping.id).update(status="running", cancel_requested_at=MORNING)
    Job.objects.filter(pk=expired.id).update(status="cancelled", cancel_requested_at=MORNING, expires_at=MORNING)
    shown = {}
    for row in model.objects.all():
        job, is_last = (row, row.id == row_of_last(row)) if model is Job else (row.current_job, True)
        shown.setdefault(shown_status(job, Times("default"), is_last=is_last), set()).add(row.pk)
    assert {"scheduled", "stopping", "expired"} <= shown.keys()
    assert ("continued" in shown) == (model is Job)
    wider = {"pending": "scheduled", "running": "stopping", "completed": "continued", "cancelled": "expired"}
    for status, ids in shown.items():
        ids |= shown.get(wider.get(status), set())
        assert {row.pk for row in model.objects.with_status(status)} == ids, status
        assert {row.pk for row in all_of(model.objects.with_status(status), 2)} == ids, status
    mixed = model.objects.with_status("scheduled", "failed", "expired")
    assert {row.pk for row in mixed} == shown["scheduled"] | shown["failed"] | shown["expired"]


def row_of_last(job):
    return Job.objects.filter(chain_id=job.chain_id).order_by("-chain_index").values_list("id", flat=True)[0]


def test_a_chain_is_never_continued():
    with pytest.raises(ValueError, match="'continued' is a status of jobs only"):
        Chain.objects.with_status("continued")


@MODELS
def test_without_a_status_or_type_nothing_matches(model, shapes):
    assert not model.objects.with_status().exists()
    assert not model.objects.of_type().exists()
    assert not model.objects.of_chain_type().exists()
    assert list(model.objects.with_status().page()) == []


@MODELS
@pytest.mark.parametrize("statuses", [("failed", "FAILED"), ("",), (None,)])
def test_an_unknown_status_is_an_error(model, statuses):
    with pytest.raises(ValueError, match=r"is not a status\. Known: blocked, scheduled, pending, running, stopping"):
        model.objects.with_status(*statuses)


def test_chains_have_the_type_of_their_first_job_and_jobs_their_own(shapes):
    assert names(shapes, Chain.objects.of_type("shop.pack")) == SHAPES.keys()
    assert names(shapes, Chain.objects.of_type(JobType("shop.pack"))) == SHAPES.keys()
    assert names(shapes, Chain.objects.of_chain_type(JobType("shop.mail"), "shop.ship")) == {"blocker"}
    assert names(shapes, Chain.objects.of_chain_type("shop.mail")) == {"blocker"}
    assert not Chain.objects.of_type("shop.ship").exists()
    assert Job.objects.of_type("shop.ship").count() == 5
    assert Job.objects.of_type("shop.pack", "shop.ship", "shop.mail").count() == Job.objects.count()
    assert not Job.objects.of_type("shop.Pack").exists()
    of_pack = Job.objects.of_chain_type("shop.pack")
    assert {job.chain_id for job in of_pack} == {chain.id for name, chain in shapes.items() if name != "blocker"}
    assert of_pack.of_type("shop.ship").count() == 5


@MODELS
def test_blocked_by_finds_jobs_that_wait_or_waited_for_a_chain_its_id_or_one_of_its_jobs(model):
    blocker, other = mail.enqueue(), mail.enqueue()
    one, two = pack.enqueue(blockers=[blocker]), pack.enqueue(blockers=[other, blocker])
    pack.enqueue(blockers=[other])
    with chains.current_job(blocker.id) as current:
        current.continue_with(ship)
    chains.complete(blocker.id)
    for given in (blocker, blocker.id, blocker.refresh().current_job):
        assert {found.pk for found in model.objects.blocked_by(given)} == {one.id, two.id}
    assert [found.pk for found in model.objects.blocked_by(blocker).with_status("blocked")] == [two.id]
    assert not model.objects.blocked_by(one).exists()
    assert not model.objects.blocked_by(uuid4()).exists()


def test_a_chain_that_waits_in_two_steps_is_found_once():
    blocker = mail.enqueue()
    chain = pack.enqueue(blockers=[blocker])
    with chains.current_job(chain.id) as current:
        current.continue_with(ship, blockers=[blocker])
    assert [found.id for found in Chain.objects.blocked_by(blocker)] == [chain.id]
    assert Chain.objects.blocked_by(blocker).count() == len(Chain.objects.blocked_by(blocker).page()) == 1
    assert [job.chain_index for job in Job.objects.blocked_by(blocker).order_by("chain_index")] == [0, 1]


def test_roots_block_no_job(shapes):
    assert names(shapes, Chain.objects.roots()) == shapes.keys() - {"blocker"}
    assert {job.chain_id for job in Job.objects.roots()} == {chain.id for chain in Chain.objects.roots()}
    assert Job.objects.roots().count() == Job.objects.count() - 1
    chains.complete(shapes["blocker"].id)
    assert "blocker" not in names(shapes, Chain.objects.roots())


@MODELS
def test_created_between_includes_its_start_and_excludes_its_end(model):
    """The times of the ids differ by a few minutes from the times of the rows."""

    def made_at(time, *skews):
        return rows(len(skews), [UUID(int=first_id_at(time + skew).int | uuid4().int >> 48) for skew in skews], time)

    made = made_at(MORNING, timedelta(minutes=-9), timedelta(0), timedelta(minutes=9))
    before, after = (made_at(MORNING + offset, timedelta(0)) for offset in (-MICROSECOND, MICROSECOND))
    found = model.objects.created_between(MORNING, MORNING + MICROSECOND)
    assert (
        [row.pk for row in all_of(found, 1)] == sorted(found.values_list("pk", flat=True), reverse=True) == made[::-1]
    )
    assert set(model.objects.created_between(None, MORNING).values_list("pk", flat=True)) == set(before)
    assert set(model.objects.created_between(MORNING + MICROSECOND, None).values_list("pk", flat=True)) == set(after)
    assert model.objects.created_between(None, None).count() == 5
    with pytest.raises(ValueError, match="has no time zone"):
        model.objects.created_between(datetime(2026, 1, 1), None)  # noqa: DTZ001


@MODELS
def test_created_between_takes_the_same_times_without_use_tz(model, settings):
    settings.TIME_ZONE, settings.USE_TZ = "Asia/Kathmandu", False
    chain = pack.enqueue()
    earlier, later_on = (database_now() + timedelta(minutes=minutes) for minutes in (-1, 1))
    assert model.objects.created_between(earlier, later_on).get().pk == chain.id
    assert not model.objects.created_between(later_on, None).exists()
    assert not model.objects.created_between(None, earlier).exists()


@MODELS
def test_created_between_distinguishes_the_repeated_hour_without_use_tz(model, settings):
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30, as is the time an hour later
    times = [first, first + timedelta(hours=1)]
    made = [rows(1, [UUID(int=first_id_at(time).int | uuid4().int >> 48)], time) for time in times]
    settings.TIME_ZONE, settings.USE_TZ = "Europe/Berlin", False
    for time, ids in zip(times, made, strict=True):
        found = model.objects.created_between(time, time + MICROSECOND)
        assert list(found.values_list("pk", flat=True)) == ids


def test_a_job_has_its_own_creation_time():
    chain = pack.enqueue()
    later_on = database_now()
    Job.objects.update(created_at=later_on - MICROSECOND)
    with chains.current_job(chain.id) as current:
        current.continue_with(ship)
    assert [job.chain_index for job in Job.objects.of_chain(chain).created_between(later_on, None).page()] == [1]
    assert not Chain.objects.created_between(later_on, None).exists()


@MODELS
def test_filters_can_be_combined_with_each_other_and_with_those_of_django(model):
    rows(3, status="failed", type_name="shop.mail", chain_type_name="shop.mail")
    wanted = rows(2, status="failed")
    rows(2, status="completed")
    narrowed = model.objects.with_status("failed", "completed").of_type("shop.pack").with_status("failed", "blocked")
    assert [found.pk for found in all_of(narrowed, 1)] == [row.pk for row in narrowed.order_by("-pk")] == wanted[::-1]
    assert model.objects.filter(pk__in=narrowed.values("pk")).exclude(pk=wanted[0]).get().pk == wanted[1]
    assert not list(model.objects.incomplete().with_status("failed").page())


def test_chains_can_be_filtered_by_input_output_and_current_job():
    one = steps(2, status="completed", output={"total": 3})
    two = steps(1, status="completed", output={"total": 4}, input={"order": 9})
    assert [chain.id for chain in Chain.objects.filter(output__total__gte=4)] == [two]
    assert [chain.id for chain in Chain.objects.filter(input__order=9)] == [two]
    found = Chain.objects.filter(type_name="shop.pack", status="completed", current_job__chain_index=1)
    assert [chain.id for chain in found.select_related("current_job").page()] == [one]
