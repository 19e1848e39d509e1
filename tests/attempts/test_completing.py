"""A handler completes its job by returning, or in a transaction with its own writes."""

from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal

import pytest
from django.db import connection, transaction

from django_jobchains.db.ids import new_id
from django_jobchains.exceptions import ChainNotFound
from django_jobchains.models import Job
from django_jobchains.processors import Backoff
from tests.support.attempts import committed
from tests.support.scenario import effect, effects

pytestmark = committed


def complete_in(place, job, function):
    """Return what a function returns, after calling it in this place of a handler."""
    if place == "complete":
        with job.complete():
            return function()
    return function()


def mode_of(place):
    return "atomic" if place == "atomic" else "staged"


def test_handler_gets_its_job_and_its_result_completes_it(processors, work):
    seen = []

    @processors.register("double")
    def double(job):
        seen.append(job)
        return 2 * job.input

    chain = double.enqueue(21, priority=3, queue="mail")
    work(name="mail")
    [job], row = seen, chain.refresh().current_job
    assert (job.id, job.chain_id, job.type_name, job.input) == (chain.id, chain.id, "double", 21)
    assert (job.attempt, job.priority, job.queue, job.last_error) == (1, 3, "mail", None)
    assert (job.created_at, job.run_at, job.last_attempt_at) == (row.created_at, row.run_at, row.last_attempt_at)
    assert job.created_at.utcoffset() is not None
    assert not job.signal.aborted
    assert (row.status, row.output, row.attempt, chain.output) == ("completed", 42, 1, 42)
    assert (row.leased_by, row.leased_until, row.last_error) == (None, None, None)
    assert row.completed_by.startswith("mail:")
    assert row.created_at <= row.last_attempt_at <= row.finished_at


#: The mode of a handler, that of its ``prepare()``, and where a transaction is open.
MODES = {
    "staged": ("staged", "staged", [False, True, False, True, True]),
    "atomic prepare": ("staged", "atomic", [False, True, True, True, True]),
    "without prepare": ("staged", None, [False, False, True, True]),
    "atomic handler": ("atomic", None, [True, True, True, True]),
}


@pytest.mark.parametrize(("mode", "prepare", "expected"), MODES.values(), ids=MODES)
def test_where_transactions_are_open(processors, work, mode, prepare, expected):
    open_ = []

    def note():
        open_.append(connection.in_atomic_block)

    @processors.register("reads", mode=mode)
    def reads(job):
        note()
        if prepare:
            with job.prepare(mode=prepare):
                effect(job, "prepared")
                note()
        note()
        with job.complete():
            effect(job, "completed")
            note()
        note()
        effect(job, "afterwards")

    chain = reads.enqueue()
    work()
    assert open_ == expected
    assert effects() == [*(["prepared"] if prepare else []), "completed", "afterwards"]
    assert chain.refresh().status == "completed"


def test_on_commit_hooks_run_after_the_commit_of_their_phase(processors, work):
    seen = []

    @processors.register("hooked")
    def hooked(job):
        def note():
            seen.append(Job.objects.get(pk=job.id).status)

        with job.prepare():
            transaction.on_commit(note)
        assert seen == ["running"]
        with job.complete():
            transaction.on_commit(note)

    hooked.enqueue()
    work()
    assert seen == ["running", "completed"]


def circular():
    values = []
    values.append(values)
    return values


@dataclass
class Receipt:
    number: int


@pytest.mark.parametrize("place", ["staged", "complete", "atomic"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: {"sums": [1, Decimal("0.1")]}, "at $.sums[1]: Decimal is not JSON"),
        (circular, "nested deeper than 100 levels"),
        (lambda: "x" * 2**20, "1,048,578 bytes of JSON; the limit is 1,048,576"),
        (lambda: 10**5000, "cannot be written as JSON"),
    ],
)
def test_result_that_cannot_be_stored_fails_the_attempt(processors, work, place, make, reason):
    @processors.register("returns", mode=mode_of(place))
    def returns(job):
        return complete_in(place, job, lambda: (effect(job), make())[1])

    good = processors.register("other")(lambda job: "fine").enqueue()
    chain = returns.enqueue()
    work()
    job = chain.refresh().current_job
    assert (job.status, job.output) == ("pending", None)
    assert job.last_error.startswith("InvalidOutput: ")
    assert reason in job.last_error
    assert effects() == (["written"] if place == "staged" else [])
    assert good.refresh().output == "fine"


def test_output_must_be_of_the_type(processors, work):
    @processors.register("typed")
    def typed(job) -> Receipt:
        return Receipt(7) if job.input else "not a receipt"

    wrong, right = typed.enqueue(0), typed.enqueue(1)
    work()
    assert wrong.refresh().current_job.last_error.startswith("InvalidOutput: Output of 'typed': not a Receipt: ")
    assert (right.refresh().stored_output, right.output) == ({"number": 7}, Receipt(7))


@pytest.mark.parametrize("writes", ["in complete()", "with others", "as a batch"])
@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({}, ("pending", 1)),
        ({"backoff": Backoff(0, 1, 0, 0), "max_attempts": 2}, ("failed", 2)),
        ({"fail_on": (ChainNotFound,)}, ("failed", 1)),
    ],
)
def test_error_while_the_outcome_is_written_is_that_of_the_attempt(processors, work, writes, options, end):
    """It is handled in the same way in ``complete()`` and in the writer of ends."""

    def handler(job):
        for each in job if writes == "as a batch" else [job]:
            with job.complete() if writes == "in complete()" else nullcontext():
                continuation = each.continue_with("continues", blockers=[new_id()])
        return None if writes == "as a batch" else continuation

    if writes == "as a batch":
        options = {**options, "batch_limit": 2}
    processors.register("continues", **options)(handler).enqueue()
    work(slots=1)
    job = Job.objects.get()
    assert job.last_error.startswith("ChainNotFound: ")
    assert (job.status, job.attempt) == end
    assert job.failed_attempts.count() == job.attempt
