"""Workers with recurring chains, each of which enqueues its successor while it completes, and with unused keys."""

from datetime import timedelta

import pytest
from django.db.models import F

from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job, KeyLock
from tests.deduplication.keyed_chains import start
from tests.support.attempts import WITHOUT_WAKE_UPS, committed, on_own_connection
from tests.support.waiting import until

pytestmark = committed


@pytest.mark.parametrize("by_another", [False, True], ids=["by the handler", "by another process"])
def test_each_chain_of_a_recurring_type_has_exactly_one_successor(processors, work, settings, by_another):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS

    @processors.register("shop.tick")
    def tick(job):
        if by_another:
            on_own_connection(enqueue, job.input + 1, [job.chain_id])
        with job.complete():
            chain = enqueue(job.input + 1, [job.chain_id])
            assert chain.deduplicated is by_another

    def enqueue(number, excluded=()):
        return tick.enqueue(number, delay=3600 * (number > 4), deduplicate=Deduplicate("k", exclude_chain_ids=excluded))

    enqueue(0)
    work(slots=1)  # Two handlers at once would find the chains of each other.
    jobs = [(job.input, job.chain_index, job.status) for job in Job.objects.order_by("input")]
    assert jobs == [*((number, 0, "completed") for number in range(5)), (5, 0, "pending")]
    again = enqueue(100)
    assert (again.deduplicated, again.input) == (True, 5)


@pytest.mark.postgresql
def test_worker_deletes_the_rows_of_unused_keys(start_worker, processors, settings):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05}
    processors.register("anything")(lambda job: None)
    start()
    Job.objects.all().delete()
    KeyLock.objects.update(used_at=F("used_at") - timedelta(days=2))
    start_worker()
    until(lambda: not KeyLock.objects.exists())
