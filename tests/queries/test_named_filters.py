"""The named filters of ``Job.objects`` and ``Chain.objects``, alone, combined, and with Django's own."""

from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from django_jobchains import chains
from django_jobchains.db.ids import first_id_at
from django_jobchains.models import Chain, Job
from django_jobchains.statuses import Status
from tests.support.chain_shapes import MORNING, SHAPES, all_of, later, mail, pack, rows, ship, steps
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db
MODELS = pytest.mark.parametrize("model", [Job, Chain])


MICROSECOND = timedelta(microseconds=1)


def id_at(time):
    return UUID(int=first_id_at(time).int | uuid4().int >> 48)


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


@pytest.mark.parametrize("status", Status.values)
def test_chains_have_the_status_of_their_last_job(shapes, status):
    assert names(shapes, Chain.objects.with_status(status)) == CHAINS_WITH_STATUS[status]


@pytest.mark.parametrize("status", Status.values)
def test_jobs_have_their_own_status(shapes, status):
    expected = sorted(job.id for job in Job.objects.all() if job.status == status)
    assert sorted(job.id for job in Job.objects.with_status(status)) == expected
    assert expected


def test_several_statuses_match_any_of_them(shapes):
    assert names(shapes, Chain.objects.with_status("failed", "cancelled")) == {"failed", "cancelled"}
    assert {job.status for job in Job.objects.with_status("failed", "running")} == {"failed", "running"}


@MODELS
def test_without_a_status_or_type_nothing_matches(model, shapes):
    assert not model.objects.with_status().exists()
    assert not model.objects.of_type().exists()
    assert list(model.objects.with_status().page()) == []


@MODELS
@pytest.mark.parametrize("statuses", [("done",), ("failed", "FAILED"), ("",), (None,)])
def test_an_unknown_status_is_an_error(model, statuses):
    with pytest.raises(ValueError, match=r"is not a status\. Known: blocked, pending, running, completed"):
        model.objects.with_status(*statuses)


@MODELS
def test_a_status_may_be_an_enum_member(model, shapes):
    assert set(model.objects.with_status(Status.FAILED)) == set(model.objects.with_status("failed"))


def test_incomplete_is_blocked_pending_or_running(shapes):
    assert names(shapes, Chain.objects.incomplete()) == {"pending", "continued", "blocker", "running", "blocked"}
    assert {job.status for job in Job.objects.incomplete()} == {"pending", "running", "blocked"}
    assert Job.objects.incomplete().count() == Chain.objects.incomplete().count() == 5


def test_chains_have_the_type_of_their_first_job(shapes):
    assert names(shapes, Chain.objects.of_type("shop.pack")) == SHAPES.keys()
    assert names(shapes, Chain.objects.of_type("shop.mail")) == {"blocker"}
    assert not Chain.objects.of_type("shop.ship").exists()
    assert Chain.objects.of_type("shop.pack", "shop.mail").count() == len(SHAPES) + 1


def test_jobs_have_their_own_type(shapes):
    assert Job.objects.of_type("shop.ship").count() == 5
    assert Job.objects.of_type("shop.mail").count() == 2
    assert Job.objects.of_type("shop.pack", "shop.ship", "shop.mail").count() == Job.objects.count()
    assert not Job.objects.of_type("shop.Pack").exists()


def test_blocked_by_finds_chains_and_jobs_that_wait():
    blocker, other = mail.enqueue(), mail.enqueue()
    one, two = pack.enqueue(blockers=[blocker]), pack.enqueue(blockers=[other, blocker])
    pack.enqueue(blockers=[other])
    assert set(Chain.objects.blocked_by(blocker)) == {one, two}
    assert {job.id for job in Job.objects.blocked_by(blocker)} == {one.id, two.id}


@MODELS
def test_blocked_by_accepts_a_chain_its_id_or_one_of_its_jobs(model):
    blocker = mail.enqueue()
    dependent = pack.enqueue(blockers=[blocker])
    with chains.current_job(blocker.id) as current:
        current.continue_with(ship)
    for given in (blocker, blocker.id, blocker.refresh().current_job):
        assert [found.pk for found in model.objects.blocked_by(given)] == [dependent.id]
    assert not model.objects.blocked_by(dependent).exists()
    assert not model.objects.blocked_by(uuid4()).exists()


@MODELS
def test_blocked_by_finds_jobs_that_waited_for_an_ended_chain(model):
    blocker = mail.enqueue()
    dependent = pack.enqueue(blockers=[blocker])
    chains.complete(blocker.id)
    assert [found.pk for found in model.objects.blocked_by(blocker)] == [dependent.id]
    assert not model.objects.blocked_by(blocker).with_status("blocked").exists()


def test_a_chain_that_waits_in_two_steps_is_found_once():
    blocker = mail.enqueue()
    chain = pack.enqueue(blockers=[blocker])
    with chains.current_job(chain.id) as current:
        current.continue_with(ship, blockers=[blocker])
    assert [found.id for found in Chain.objects.blocked_by(blocker)] == [chain.id]
    assert Chain.objects.blocked_by(blocker).count() == 1
    assert [found.id for found in Chain.objects.blocked_by(blocker).page()] == [chain.id]
    assert [job.chain_index for job in Job.objects.blocked_by(blocker).order_by("chain_index")] == [0, 1]


def test_blocked_by_finds_continuations(shapes):
    assert names(shapes, Chain.objects.blocked_by(shapes["blocker"])) == {"blocked"}
    assert [job.chain_index for job in Job.objects.blocked_by(shapes["blocker"])] == [1]


def test_jobs_can_be_filtered_by_the_type_of_their_chain(shapes):
    of_pack = Job.objects.of_chain_type("shop.pack")
    assert {job.chain_id for job in of_pack} == {chain.id for name, chain in shapes.items() if name != "blocker"}
    assert of_pack.of_type("shop.ship").count() == 5
    assert sorted(job.id for job in all_of(of_pack, 2)) == sorted(job.id for job in of_pack)
    assert names(shapes, Chain.objects.of_chain_type("shop.mail")) == {"blocker"}
    assert Job.objects.of_chain_type("shop.pack", "shop.mail").count() == Job.objects.count()
    assert not Job.objects.of_chain_type().exists()


def test_roots_block_no_job(shapes):
    assert names(shapes, Chain.objects.roots()) == shapes.keys() - {"blocker"}
    assert {job.chain_id for job in Job.objects.roots()} == {chain.id for chain in Chain.objects.roots()}
    assert Job.objects.roots().count() == Job.objects.count() - 1
    with chains.current_job(shapes["blocker"].id) as current:
        current.finish()
    assert not Chain.objects.roots().with_status("completed").filter(id=shapes["blocker"].id).exists()
    assert len(all_of(Chain.objects.roots(), 2)) == len(SHAPES)


@MODELS
def test_created_between_includes_its_start_and_excludes_its_end(model):
    """The times of the ids differ by a few minutes from the times of the rows."""
    skews = (timedelta(minutes=-9), timedelta(0), timedelta(minutes=9))
    made = rows(3, [id_at(MORNING + skew) for skew in skews], MORNING)
    before, after = [rows(1, [id_at(time)], time) for time in (MORNING - MICROSECOND, MORNING + MICROSECOND)]
    found = model.objects.created_between(MORNING, MORNING + MICROSECOND)
    assert sorted(found.values_list("pk", flat=True)) == sorted(made)
    assert [row.pk for row in all_of(found, 1)] == sorted(made, reverse=True)
    assert set(model.objects.created_between(None, MORNING).values_list("pk", flat=True)) == set(before)
    assert set(model.objects.created_between(MORNING + MICROSECOND, None).values_list("pk", flat=True)) == set(after)
    assert model.objects.created_between(None, None).count() == 5
    assert model.objects.with_status("failed").created_between(MORNING, None).count() == 0


def test_a_job_has_its_own_creation_time():
    chain = pack.enqueue()
    later_on = database_now()
    Job.objects.update(created_at=later_on - MICROSECOND)
    with chains.current_job(chain.id) as current:
        current.continue_with(ship)
    [job] = Job.objects.created_between(later_on, None)
    assert job.chain_index == 1
    assert [job.chain_index for job in Job.objects.of_chain(chain).created_between(later_on, None).page()] == [1]
    assert not Chain.objects.created_between(later_on, None).exists()


@MODELS
def test_created_between_requires_aware_times(model):
    with pytest.raises(ValueError, match="has no time zone"):
        model.objects.created_between(datetime(2026, 1, 1), None)  # noqa: DTZ001


@MODELS
def test_filters_can_be_combined(model):
    rows(3, status="failed", type_name="shop.mail", chain_type_name="shop.mail")
    wanted = rows(2, status="failed")
    rows(2, status="completed")
    narrowed = model.objects.with_status("failed", "completed").of_type("shop.pack").with_status("failed", "blocked")
    assert sorted(found.pk for found in narrowed) == sorted(wanted)
    assert sorted(found.pk for found in all_of(narrowed, 1)) == sorted(wanted)
    assert not model.objects.incomplete().with_status("failed").exists()
    assert not list(model.objects.incomplete().with_status("failed").page())


@MODELS
def test_filters_return_querysets(model):
    old = rows(2, created_at=MORNING, status="failed")
    new = rows(3, created_at=later(60), status="failed")
    rows(4, created_at=later(60))
    found = model.objects.with_status("failed")
    assert found.count() == 5
    assert found.exists()
    assert set(found.filter(created_at__gte=later(1)).values_list("pk", flat=True)) == set(new)
    assert set(found.exclude(created_at__gte=later(1)).values_list("pk", flat=True)) == set(old)
    assert [row["pk"] for row in found.order_by("-pk").values("pk")] == [*reversed(new), *reversed(old)]
    assert found.order_by("created_at", "pk").first().pk == old[0]
    assert found.order_by("created_at", "pk").last().pk == new[-1]
    assert found.filter(pk__in=new[:1]).get().pk == new[0]
    assert set(found.distinct().values_list("status")) == {("failed",)}
    assert model.objects.filter(pk__in=found.values("pk")).count() == 5


def test_chains_can_be_filtered_by_input_and_output():
    one = steps(2, status="completed", output={"total": 3})
    two = steps(1, status="completed", output={"total": 4}, input={"order": 9})
    assert [chain.id for chain in Chain.objects.filter(output__total__gte=4)] == [two]
    assert [chain.id for chain in Chain.objects.filter(input__order=9)] == [two]
    assert [chain.id for chain in Chain.objects.filter(output={"total": 3})] == [one]


def test_a_typical_query_of_an_admin():
    """Filter by type, status and time, and join the current job."""
    rows(2, status="failed", created_at=MORNING)
    wanted = rows(2, status="failed", created_at=later(3600))
    rows(2, status="completed", created_at=later(3600))
    rows(2, status="failed", created_at=later(3600), type_name="shop.mail", chain_type_name="shop.mail")
    failed_step = steps(3, status="failed")
    Job.objects.filter(chain_id=failed_step).update(created_at=later(7200))
    asked = Chain.objects.filter(type_name="shop.pack", status="failed", created_at__gte=later(60))
    found = list(asked.select_related("current_job").page())
    assert [chain.id for chain in found] == [failed_step, *reversed(wanted)]
    assert asked.count() == 3
    assert Chain.objects.filter(type_name__startswith="shop.", current_job__chain_index=2).get().id == failed_step
