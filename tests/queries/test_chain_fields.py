"""The fields of a chain: type, input and creation time come from its first job, the rest from its last."""

from uuid import uuid4

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from tests.support.chain_shapes import SHAPES, later, row, steps

pytestmark = pytest.mark.django_db

FIELDS = {
    # status, input, output, error, steps, type of the current job
    "pending": ("pending", {"order": 1}, None, None, 1, "shop.pack"),
    "running": ("running", {"order": 2}, None, None, 1, "shop.pack"),
    "completed": ("completed", {"order": 3}, {"weight": 2.5}, None, 1, "shop.pack"),
    "continued": ("pending", {"order": 4}, None, None, 2, "shop.ship"),
    "completed_in_three_steps": ("completed", {"order": 5}, ["sent"], None, 3, "shop.mail"),
    "completed_without_output": ("completed", {"order": 6}, None, None, 1, "shop.pack"),
    "failed": ("failed", {"order": 4}, None, "no stamps", 2, "shop.ship"),
    "cancelled": ("cancelled", {"order": 4}, None, None, 2, "shop.ship"),
    "blocked": ("blocked", {"order": 7}, None, None, 2, "shop.ship"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_field_equals_a_column_of_the_first_or_last_job(shape):
    chain = Chain.objects.get(pk=SHAPES[shape]().id)
    status, input_, output, error, count, current_type = FIELDS[shape]
    assert (chain.status, chain.input, chain.output, chain.last_error) == (status, input_, output, error)
    assert (chain.jobs.count(), chain.current_job.type_name) == (count, current_type)
    jobs = list(Job.objects.filter(chain_id=chain.id).order_by("chain_index"))
    first, last = jobs[0], jobs[-1]
    assert (chain.id, chain.type_name, chain.input) == (first.id, first.type_name, first.input)
    assert (chain.created_at, chain.deduplication_key) == (first.created_at, first.deduplication_key)
    assert (chain.current_job_id, chain.status, chain.output) == (last.id, last.status, last.output)
    assert (chain.last_error, chain.finished_at) == (last.last_error, last.finished_at)
    assert chain.created_at.utcoffset() is not None
    assert (chain.finished_at is not None) == (chain.status in ("completed", "failed", "cancelled"))


def test_the_view_contains_every_chain_once_and_nothing_else():
    made = [make().id for make in SHAPES.values()]
    blocker = Job.objects.get(type_name="shop.mail", chain_index=0).id
    assert sorted(Chain.objects.values_list("pk", flat=True)) == sorted([*made, blocker])


def test_times_keep_their_microseconds():
    id_ = steps(2, status="completed", output={}, finished_at=later(0.000001), created_at=later(5))
    chain = chains.get(id_)
    assert (chain.created_at, chain.finished_at) == (later(0), later(0.000001))


def test_ids_given_by_the_user_may_have_any_order():
    high, low = sorted((row(id_) for id_ in (uuid4(), uuid4())), key=lambda job: job.id, reverse=True)
    low.chain_id, low.chain_index, low.status = high.id, 1, "running"
    high.status = "completed"
    Job.objects.bulk_create([high, low])
    chain = chains.get(high.id)
    assert (chain.current_job_id, chain.status) == (low.id, "running")
    assert [job.id for job in chain.jobs] == [high.id, low.id]
