"""The types of outputs: the type of the last job, and the type that a caller expects the chain to have."""

import copy
import pickle
from dataclasses import dataclass
from threading import Lock

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Chain, JobTypeMismatch
from django_jobchains.exceptions import InvalidOutput
from django_jobchains.models import Job
from django_jobchains.processors import Continuation, RunningJob
from tests.support.attempts import committed
from tests.waiting.waiters import WaitingThread, approval, until_waiting

pytestmark = committed


@dataclass(frozen=True)
class Receipt:
    number: int


@dataclass(frozen=True)
class Points:
    number: int


@pytest.fixture
def charge(processors):
    @processors.register("shop.points")
    def points(job: RunningJob[int]) -> Points:
        return Points(job.input)

    @processors.register("shop.charge")
    def charge(job: RunningJob[int]) -> Receipt | Continuation:
        return job.continue_with(points, job.input) if job.input > 10 else Receipt(job.input)

    return charge


READERS = {
    "get": lambda chain_id, job_type: chains.get(chain_id, job_type=job_type).output,
    "aget": lambda chain_id, job_type: async_to_sync(chains.aget)(chain_id, job_type=job_type).output,
    "wait": lambda chain_id, job_type: chains.wait(chain_id, 30, job_type=job_type),
    "await_chain": lambda chain_id, job_type: async_to_sync(chains.await_chain)(chain_id, 30, job_type=job_type),
    "result": lambda chain_id, job_type: chains.get(chain_id, job_type=job_type).result(30),
}
each_reader = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


@each_reader
def test_output_is_decoded_as_the_expected_type_or_else_of_the_last_job(charge, work, read, registry, monkeypatch):
    chain, continued = charge.enqueue(7), charge.enqueue(11)
    work()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "slices", [])
        assert read(chain.id, charge) == Receipt(7)
        assert read(chain.id, "shop.charge") == {"number": 7}
        assert read(continued.id, charge) == {"number": 11}
    # The caller does not need to know the type of the last job, if an app declares it.
    assert read(continued.id, charge) == read(continued.id, None) == continued.refresh().output == Points(11)
    assert continued.stored_output == {"number": 11}


@each_reader
@pytest.mark.parametrize("expected", ["shop.points", approval], ids=["a name", "a type"])
def test_chain_of_another_type_raises_job_type_mismatch(charge, work, read, expected):
    chain = charge.enqueue(11)
    work()
    message = r"is of type 'shop\.charge', not '(shop\.points|waiting\.approval)'"
    with pytest.raises(JobTypeMismatch, match=message) as caught:
        read(chain.id, expected)
    assert (caught.value.job_id, caught.value.actual) == (chain.id, "shop.charge")


def test_wait_for_a_running_chain_of_another_type_raises_at_once(charge):
    chain = charge.enqueue(7)
    assert chain.output is None
    with pytest.raises(JobTypeMismatch):
        chains.wait(chain.id, None, job_type=approval)


def test_result_decodes_with_the_type_that_enqueued_the_chain(charge, work):
    chain = charge.enqueue(7)
    waiter = WaitingThread(chain.id, 30, lambda _, timeout: chain.result(timeout))
    until_waiting(1)
    work()
    assert waiter.output() == Receipt(7)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda chain: pickle.loads(pickle.dumps(chain))], ids=["", "pickle"])
def test_copy_of_a_chain_decodes_with_the_registered_type(charge, work, copied):
    """As in ``setUpTestData`` and in caches, which cannot copy what handlers and middleware may contain."""
    charge.lock = Lock()
    chain = charge.enqueue(7)
    work()
    assert copied(chain).output == copied(chains.get(chain.id, job_type=charge)).output == Receipt(7)


def test_stored_output_that_no_longer_fits_raises_invalid_output(charge, work):
    chain = charge.enqueue(7)
    work()
    Job.objects.filter(pk=chain.id).update(output={"number": "hunter2"})
    with pytest.raises(InvalidOutput, match=r"^Not a Receipt: number: Input should be a valid integer") as caught:
        chain.refresh().output  # noqa: B018
    assert "hunter2" not in str(caught.value)
    assert chain.stored_output == {"number": "hunter2"}


def test_output_can_be_used_in_queries(charge, work, django_assert_num_queries):
    chains.enqueue_many([charge.item(number) for number in (7, 11)])
    work()
    assert Chain.objects.get(output__number=7).input == 7
    assert list(Chain.objects.order_by("id").values_list("output", flat=True)) == [{"number": 7}, {"number": 11}]
    assert "stored_output" in Chain.objects.defer("output").get(output__number=7).get_deferred_fields()
    rows = list(Chain.objects.select_related("current_job").order_by("id"))
    with django_assert_num_queries(0):
        assert [chain.output for chain in rows] == [Receipt(7), Points(11)]
