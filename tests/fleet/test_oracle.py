"""The oracle notices what is lost and what is doubled."""

from uuid import uuid4

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.testing import run_due_jobs
from tests.fleet import web
from tests.fleet.oracle import Acknowledged, assert_nothing_is_lost_or_doubled, unfinished
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.fixtures import registry
from tests.support.worker_app.jobs import processors

pytestmark = pytest.mark.django_db(transaction=True)


__all__ = ("registry",)


@pytest.fixture
def acknowledged(registry):
    """One request of each kind, and all of its work."""
    registry.add(processors)
    lines = []
    for number, kind in enumerate(web.KINDS):
        with transaction.atomic():
            line = Acknowledged(kind.__name__, kind(number), web.key_of(number) if kind is web.once else None, 0)
        lines.append(line)
    chains.cancel(of(lines, "cancelled").id)
    run_due_jobs()
    assert unfinished("default") == {}
    return lines


def of(lines, kind):
    return next(line for line in lines if line.kind == kind)


def notices(lines, text):
    with pytest.raises(AssertionError, match=text):
        assert_nothing_is_lost_or_doubled(lines, "default")


def test_all_is_well(acknowledged):
    assert_nothing_is_lost_or_doubled(acknowledged, "default")


def test_a_lost_commit_is_noticed(acknowledged):
    notices([*acknowledged, Acknowledged("write", uuid4(), None, 0)], "lost: ")


def test_a_lost_chain_is_noticed(acknowledged):
    Job.objects.filter(pk=of(acknowledged, "write").id).delete()
    notices(acknowledged, "is lost")


def test_a_lost_business_row_is_noticed(acknowledged):
    Effect.objects.filter(label="ordered steps").delete()
    notices(acknowledged, "a chain without its order")


@pytest.mark.parametrize("label", ["written", "converted"])
def test_a_doubled_or_missing_effect_is_noticed(acknowledged, label):
    effect = Effect.objects.filter(label=label).first()
    Effect.objects.create(job_id=effect.job_id, label=label)
    notices(acknowledged, "2 effects of")
    Effect.objects.filter(job_id=effect.job_id, label=label).delete()
    notices(acknowledged, "0 effects of")


def test_a_second_chain_of_a_key_is_noticed(acknowledged):
    first = of(acknowledged, "once")
    other = of(acknowledged, "write")
    notices([*acknowledged, Acknowledged("once", other.id, first.key, 0)], "2 chains with the key")


def test_unfinished_and_not_cancelled_work_is_noticed(acknowledged):
    cancelled = of(acknowledged, "cancelled").id
    chains.retry(cancelled)
    notices(acknowledged, "not cancelled any more")
    Upload.objects.update(state="queued")
    assert unfinished("default") == {"records": 1}
    Job.objects.filter(type_name="chaos.write", status="completed").update(status="pending")
    assert unfinished("default")["pending"] > 0


def test_a_missed_and_a_doubled_tick_are_noticed(acknowledged):
    for second in (100, 101, 103):
        Effect.objects.create(job_id=uuid4(), label=f"s0 {second}")
    notices(acknowledged, "s0 fired 3 times")
    Effect.objects.create(job_id=uuid4(), label="s0 102")
    assert_nothing_is_lost_or_doubled(acknowledged, "default")
    Effect.objects.create(job_id=uuid4(), label="s0 102")
    notices(acknowledged, "s0 fired 5 times")
