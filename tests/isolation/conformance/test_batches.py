"""Batch handlers behave in the same way in threads and in child processes."""

import pytest

from django_jobchains import chains
from tests.isolation.app import batch_jobs
from tests.isolation.ends import ended, failures, labels, output
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("worker")


def test_each_job_of_a_batch_ends_in_its_own_way() -> None:
    first, refused, retried, last = chains.enqueue_many([batch_jobs.batch.item(number) for number in range(4)])
    assert (output(first), output(retried), output(last)) == (0, 20, 30)
    assert ended(refused).status == "failed"
    assert failures(refused) == [("error", "FailJob: no use")]
    assert len(failures(retried)) == 1
    until(lambda: "in a batch of 4" in [line.text for line in last.jobs.get().log_lines.all()], 10)


def test_a_batch_writes_in_one_transaction() -> None:
    started = chains.enqueue_many([batch_jobs.batch_complete.item() for _ in range(3)])
    assert [output(chain) for chain in started] == [None] * 3
    assert [labels(chain) for chain in started] == [["written"]] * 3


def test_cancelling_one_job_of_a_batch_aborts_its_signal_only() -> None:
    started = chains.enqueue_many([batch_jobs.batch_heeds.item() for _ in range(3)])
    until(lambda: all("started" in labels(chain) for chain in started), 20)
    chains.cancel(started[1])
    assert [ended(chain).status for chain in started] == ["completed", "cancelled", "completed"]
