"""An attempt fails as a whole if its handler ends the transaction, or if the connection breaks."""

from functools import partial

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobchains.exceptions import ConnectionLost
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.connections import elsewhere, end_session
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, outside, prepare, write

pytestmark = committed

#: Statements that end a transaction without Django's knowledge. Some of them begin another one.
ENDS = ["ROLLBACK", "ROLLBACK; BEGIN", "COMMIT", "COMMIT; BEGIN"]
ends = pytest.mark.parametrize("end", ENDS)
PHASES = {"complete": complete, "staged": prepare, "atomic": partial(prepare, mode="atomic")}


def execute(statements):
    with connection.cursor() as cursor:
        for statement in statements.split("; "):
            cursor.execute(statement)


def assert_failed(scenario, left=(), error="TransactionEnded"):
    scenario.run()
    assert {each.partition(":")[0] for each in scenario.errors()} == {error}
    assert (scenario.states(), effects()) == ({"retried"}, list(left))


def end_in(scenario, phase, end):
    continued = []

    def handler(jobs):
        yield phase(lambda: (write(jobs, "before")(), execute(end)))
        continued.append(True)

    scenario.enqueue(handler)
    assert_failed(scenario, ["before"] if "COMMIT" in end else [])
    return bool(continued)


@ends
@kinds(*JOBS, *RECORDS)
def test_transaction_ended_in_complete(scenario, end):
    assert end_in(scenario, complete, end)


@ends
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_transaction_ended_in_prepare(scenario, mode, end):
    assert end_in(scenario, partial(prepare, mode=mode), end) == (mode == "atomic")


@ends
@kinds("plain", "batch")
def test_transaction_ended_in_an_atomic_handler(scenario, end):
    def handler(jobs):
        yield outside(lambda: (write(jobs, "before")(), execute(end)))
        for job in jobs:
            continuation = job.continue_with("scenario")
        return continuation

    made = scenario.enqueue(handler, mode="atomic")
    assert_failed(scenario, ["before"] if "COMMIT" in end else [])
    assert Job.objects.count() == len(made)


@kinds(*JOBS, *RECORDS)
def test_writes_in_the_next_transaction_are_rolled_back(scenario):
    def function(jobs):
        execute("ROLLBACK; BEGIN")
        with transaction.atomic():
            write(jobs, "after")()

    scenario.enqueue(lambda jobs: (yield complete(partial(function, jobs))))
    assert_failed(scenario)


@ends
@kinds("plain")
@pytest.mark.postgresql
@pytest.mark.parametrize("option", ["prepare_threshold", "DISABLE_SERVER_SIDE_CURSORS"])
def test_transaction_ended_with_other_kinds_of_cursors(scenario, monkeypatch, end, option):
    """These settings change how statements are sent."""
    connection.ensure_connection()  # the connection of this thread keeps its options after the test
    if option == "prepare_threshold":
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], option: 0})
    else:
        monkeypatch.setitem(connection.settings_dict, option, True)
    assert end_in(scenario, complete, end)


@kinds("batch")
def test_transaction_ended_in_a_batch_that_completes_nothing(scenario):
    """The jobs get the outcomes that the handler gave them, but none of its writes is kept."""

    def handler(jobs):
        def function():
            for job in jobs:
                effect(job, "before")
                job.reschedule(delay=1_000)
            execute("ROLLBACK; BEGIN")
            effect(jobs[0], "after")

        yield complete(function)

    made = scenario.enqueue(handler)
    scenario.run()
    assert (scenario.states(), effects()) == ({"waiting"}, [])
    assert {chain.current_job.reschedules for chain in made} == {1}


@kinds(*JOBS, *RECORDS)
@pytest.mark.parametrize("end", ["ROLLBACK TO spot", "RELEASE spot"])
def test_handler_may_end_its_own_savepoints(scenario, end):
    def function(jobs):
        effect(jobs[0], "before")
        execute(f"SAVEPOINT spot; {end}")
        with transaction.atomic():
            effect(jobs[0], "after")

    scenario.enqueue(lambda jobs: (yield complete(partial(function, jobs))))
    scenario.run()
    assert (scenario.states(), effects()) == ({"completed"}, ["before", "after"])


# Other databases


def leave_in(scenario, phase, alias):
    def leave(jobs):
        write(jobs, "half")()
        transaction.atomic(using=alias).__enter__()

    scenario.enqueue(lambda jobs: (yield phase(partial(leave, jobs))))


@kinds(*JOBS, *RECORDS)
def test_transaction_left_open_on_another_database_in_complete_fails_the_attempt(scenario, second_alias):
    leave_in(scenario, complete, second_alias)
    assert_failed(scenario, error="TransactionLeftOpen")


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_transaction_left_open_on_another_database_in_prepare_fails_the_attempt(scenario, second_alias, mode):
    leave_in(scenario, partial(prepare, mode=mode), second_alias)
    # The connections of a plain handler are checked when it returns: its staged prepare is committed by then.
    is_committed = mode == "staged" and scenario.kind != "async"
    assert_failed(scenario, ["half"] if is_committed else [], "TransactionLeftOpen")


@kinds("plain", "batch", "record")
@pytest.mark.parametrize("place", ["before", "after"])
def test_transaction_left_open_on_another_database_beside_complete_fails_the_attempt(scenario, second_alias, place):
    def messy(jobs):
        if place == "before":
            transaction.atomic(using=second_alias).__enter__()
            Effect.objects.using(second_alias).create(job_id=jobs[0].id, label="left")
        yield complete(write(jobs, "half"))
        if place == "after":
            transaction.atomic(using=second_alias).__enter__()

    scenario.enqueue(messy)
    assert_failed(scenario, error="TransactionLeftOpen")
    assert not Effect.objects.using(second_alias).exists()


@kinds("batch")
@pytest.mark.parametrize("completes", [True, False])
def test_transaction_left_open_by_a_batch_undoes_the_ends_of_its_jobs(scenario, second_alias, completes):
    def messy(jobs):
        for job in jobs:
            job.finish()
        if completes:
            yield complete(write(jobs, "half"))
        transaction.atomic(using=second_alias).__enter__()

    scenario.enqueue(messy)
    assert_failed(scenario, error="TransactionLeftOpen")


def test_transaction_left_open_by_an_on_commit_hook_is_closed_and_the_job_remains_completed(
    processors, work, second_alias
):
    @processors.register("messy")
    def messy(job):
        with job.complete():
            transaction.on_commit(lambda: transaction.atomic(using=second_alias).__enter__())
        return "done"

    @processors.register("reads")
    def reads(job):
        return connections[second_alias].in_atomic_block

    chain, following = messy.enqueue(), reads.enqueue(priority=-1)
    work(slots=1)
    assert (chain.refresh().output, following.refresh().output) == ("done", False)


# Broken connections


def break_connection():
    """Let the server end this thread's session, and swallow the error of the next query."""
    connection.ensure_connection()
    end_session(connection.connection)
    with pytest.raises(OperationalError):
        execute("SELECT 1")


@pytest.mark.postgresql
@pytest.mark.parametrize("place", ["before the phase", "in the phase", "in a handler without phases"])
def test_broken_connection_whose_error_was_swallowed_fails_the_attempt(processors, work, place):
    @processors.register("breaks", backoff=Backoff(0, 1, 0, 0), max_attempts=3)
    def breaks(job):
        if job.attempt == 1 and place != "in the phase":
            break_connection()
        if job.attempt == 1 and place == "in a handler without phases":
            return
        with job.complete():
            effect(job)
            if job.attempt == 1 and place == "in the phase":
                break_connection()

    chain = breaks.enqueue()
    work(slots=1)
    assert (chain.refresh().status, chain.current_job.attempt) == ("completed", 2)
    assert FailedAttempt.objects.get().error.startswith(f"{ConnectionLost.__name__}: ")
    assert effects() == ["written"]


@pytest.mark.postgresql
@kinds(*JOBS, *RECORDS)
def test_connection_whose_session_has_ended_is_replaced_before_the_next_attempt(scenario):
    def handler(jobs):
        yield outside(lambda: (write(jobs, "written")(), end_session(connection.connection)))

    scenario.enqueue(handler, inputs=range(6), max_attempts=1)
    scenario.run(async_slots=1)
    assert (scenario.states(), Effect.objects.count()) == ({"completed"}, 6)


@pytest.mark.postgresql
def test_connection_with_notifications_is_kept(processors, work):
    """A handler that listens receives what arrives between its attempts."""

    @processors.register("listens")
    def listens(job):
        connection.ensure_connection()
        received = [notification.payload for notification in connection.connection.notifies(timeout=0)]
        execute("LISTEN news")
        elsewhere(lambda store: execute(f"NOTIFY news, '{job.input}'"))
        return received

    first, second = listens.enqueue("first"), listens.enqueue("second", priority=-1)
    work(slots=1)
    assert (first.refresh().output, second.refresh().output) == ([], ["first"])
