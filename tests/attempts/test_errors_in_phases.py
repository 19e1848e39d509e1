"""An error in a phase undoes its writes and fails the attempt, even if the handler swallows the error."""

from contextlib import suppress
from functools import partial

import pytest
from django.db import DataError, IntegrityError, connection, transaction

from django_jobchains.models import Job
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.scenario import JOBS, RECORDS, complete, effects, kinds, outside, prepare, write

pytestmark = committed


class Broken(Exception):
    pass


def raise_outside_of_the_phases(jobs):
    yield outside(write(jobs, "outside"))
    raise Broken("no luck")


def raise_in_complete(jobs):
    yield complete(write(jobs, "completed", Broken("no luck")))


def raise_after_complete(jobs):
    yield complete(write(jobs, "completed"))
    raise Broken("no luck")


def swallow_an_error_of_complete(jobs):
    with suppress(Broken):
        yield complete(write(jobs, "half", Broken("no luck")))


def swallow_an_exit_in_complete(jobs):
    with suppress(SystemExit):
        yield complete(write(jobs, "half", SystemExit("inside")))


def swallow_an_error_of_a_block_without_savepoint(jobs):
    """After an error in such a block, Django does not let the outer block commit."""

    def fail():
        write(jobs, "half")()
        with suppress(Broken), transaction.atomic(savepoint=False):
            raise Broken

    yield complete(fail)


def violate_a_constraint():
    """Cause an error after which Django refuses to commit, because it happens in a block without a savepoint."""
    with pytest.raises(IntegrityError):
        Effect.objects.create(job_id=None, label="of no job")


def divide_by_zero():
    """Cause an error that Django does not see. Only PostgreSQL knows that the transaction has failed."""
    with pytest.raises(DataError), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


failing_statements = pytest.mark.parametrize(
    "fail", [violate_a_constraint, pytest.param(divide_by_zero, marks=pytest.mark.postgresql)]
)


def set_rollback(jobs):
    yield complete(lambda: (write(jobs, "half")(), transaction.set_rollback(True)))


def close_the_connection(jobs):
    yield complete(lambda: (write(jobs, "half")(), connection.close()))


def assert_retried(scenario, error, left=()):
    scenario.run()
    [stored] = scenario.errors()
    assert (scenario.states(), error in stored, effects()) == ({"retried"}, True, list(left)), stored


@kinds(*JOBS, *RECORDS)
@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (raise_outside_of_the_phases, "Broken: no luck"),
        (raise_in_complete, "Broken: no luck"),
        (raise_after_complete, "Broken: no luck"),
        (swallow_an_error_of_complete, "Broken: no luck"),
        (swallow_an_exit_in_complete, "SystemExit: inside"),
        (swallow_an_error_of_a_block_without_savepoint, "the transaction is lost"),
        (set_rollback, "the transaction is lost"),
        (close_the_connection, "ConnectionLost: "),
    ],
)
def test_error_fails_the_attempt_and_undoes_complete(scenario, handler, error):
    scenario.enqueue(handler)
    assert_retried(scenario, error, ["outside"] if handler is raise_outside_of_the_phases else [])


@kinds(*JOBS, *RECORDS)
@failing_statements
def test_swallowed_error_of_a_statement_in_complete_fails_the_attempt(scenario, fail):
    scenario.enqueue(lambda jobs: (yield complete(lambda: (write(jobs, "half")(), fail()))))
    assert_retried(scenario, "transaction")


def raise_in_prepare(jobs, mode):
    yield prepare(write(jobs, "prepared", Broken("no luck")), mode)


def raise_between_the_phases(jobs, mode):
    yield prepare(write(jobs, "prepared"), mode)
    raise Broken("no luck")


def raise_in_complete_after_prepare(jobs, mode):
    yield prepare(write(jobs, "prepared"), mode)
    yield from raise_in_complete(jobs)


def swallow_an_error_of_prepare(jobs, mode):
    with suppress(Broken):
        yield from raise_in_prepare(jobs, mode)
    yield complete(write(jobs, "half"))


@pytest.mark.parametrize("mode", ["staged", "atomic"])
@pytest.mark.parametrize(
    ("handler", "left"),
    [
        (raise_in_prepare, []),
        (raise_between_the_phases, ["prepared"]),
        (raise_in_complete_after_prepare, ["prepared"]),
        (swallow_an_error_of_prepare, []),
    ],
)
def test_error_undoes_an_atomic_prepare_but_not_a_staged_one_that_has_ended(scenario, handler, left, mode):
    scenario.enqueue(partial(handler, mode=mode))
    assert_retried(scenario, "Broken: no luck", left if mode == "staged" else [])


@failing_statements
def test_swallowed_error_of_a_statement_in_prepare_ends_the_handler(scenario, fail):
    """The end of the block cannot commit, so the handler would continue without the writes that it relies on."""
    continued = []

    def fails(jobs):
        yield prepare(lambda: (write(jobs, "half")(), fail()))
        continued.append(True)

    scenario.enqueue(fails)
    assert_retried(scenario, "")
    assert continued == []


@kinds("plain", "batch")
@pytest.mark.parametrize("fail", [None, violate_a_constraint])
def test_error_in_atomic_mode_undoes_all_writes(scenario, fail):
    def broken(jobs):
        yield outside(write(jobs, "done"))
        if fail is None:
            raise Broken("no luck")
        yield complete(fail)

    scenario.enqueue(broken, mode="atomic")
    assert_retried(scenario, "transaction" if fail else "Broken: no luck")


def test_error_after_complete_undoes_its_continuation_and_the_chains_enqueued_in_it(scenario):
    other = scenario.processors.register("other")(lambda job: None)

    def broken(jobs):
        yield complete(lambda: (other.enqueue(), [job.continue_with(other) for job in jobs]))
        raise Broken("no luck")

    made = scenario.enqueue(broken)
    assert_retried(scenario, "Broken: no luck")
    assert Job.objects.count() == len(made)


def test_staged_prepare_is_committed_at_once_and_complete_at_the_end(scenario):
    seen = []

    def fine(jobs):
        seen.append((yield prepare(write(jobs, "prepared"))))
        seen.append((yield outside(lambda: connection.in_atomic_block)))
        seen.append((yield complete(write(jobs, "completed"))))

    scenario.enqueue(fine)
    scenario.run()
    assert seen == ["prepared", False, "completed"]
    assert (scenario.states(), effects()) == ({"completed"}, ["prepared", "completed"])


@kinds(*JOBS, *RECORDS)
def test_after_a_swallowed_error_of_complete_no_transaction_is_open(scenario):
    open_ = []

    def swallows(jobs):
        yield from swallow_an_error_of_complete(jobs)
        open_.append((yield outside(lambda: connection.in_atomic_block)))

    scenario.enqueue(swallows)
    scenario.run()
    assert open_ == [False]


@kinds(*JOBS, *RECORDS)
def test_error_caught_around_a_savepoint_is_allowed(scenario):
    def careful(jobs):
        def function():
            write(jobs, "whole")()
            with suppress(Broken), transaction.atomic():
                write(jobs, "half", Broken())()

        yield complete(function)

    scenario.enqueue(careful)
    scenario.run()
    assert (scenario.states(), effects()) == ({"completed"}, ["whole"])
