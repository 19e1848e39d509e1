"""A transaction that a handler leaves open is rolled back, its job is retried, and the slot's next job starts clean."""

import contextlib
import gc

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_jobchains.db.connections import close_thread_connections
from django_jobchains.middleware import Middleware
from django_jobchains.processors import Backoff, Processors
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.connections import elsewhere
from tests.support.scenario import JOBS, RECORDS, complete, effect, effects, kinds, outside, prepare, write

pytestmark = committed


def leave_an_atomic_block():
    transaction.atomic().__enter__()


def leave_a_block_without_savepoint():
    transaction.atomic(savepoint=False).__enter__()


def leave_autocommit_off():
    transaction.set_autocommit(False)


def leave_a_raw_transaction():
    connection.cursor().execute("BEGIN")


everything = (leave_an_atomic_block, leave_autocommit_off, leave_a_raw_transaction)
blocks = (leave_an_atomic_block, leave_a_block_without_savepoint)


def returns(jobs, leave):
    yield outside(lambda: (leave(), write(jobs, "left")()))


def raises(jobs, leave):
    yield from returns(jobs, leave)
    raise ValueError("no luck")


def completes_afterwards(jobs, leave):
    yield outside(leave)
    yield complete(write(jobs, "left"))


def prepares_afterwards(jobs, leave):
    yield outside(leave)
    yield prepare(write(jobs, "left"))


def in_complete(jobs, leave):
    yield complete(lambda: (leave(), write(jobs, "left")()))


def raises_in_complete(jobs, leave):
    yield complete(lambda: (leave(), write(jobs, "left", ValueError("no luck"))()))


def in_staged_prepare(jobs, leave):
    yield prepare(lambda: (leave(), write(jobs, "left")()))


def in_atomic_prepare(jobs, leave):
    yield prepare(lambda: (leave(), write(jobs, "left")()), "atomic")


@pytest.fixture
def check_retried(scenario):
    """Return a function that checks that an attempt fails without effects, and that the next ones start clean."""

    def read_and_write(job):
        before = [connection.in_atomic_block, not connection.get_autocommit()]
        effect(job, "follower")
        return before

    @scenario.processors.register("follower")
    def follower(job):
        return read_and_write(job)

    @scenario.processors.register("async_follower")
    async def afollower(job):
        return await sync_to_async(read_and_write)(job)

    def check(handler, error, **options):
        scenario.enqueue(handler, **options)
        chains = [follower.enqueue(priority=-1), afollower.enqueue(priority=-1)]
        scenario.run(async_slots=1)
        [stored] = scenario.errors()
        assert (scenario.states(), error in stored) == ({"retried"}, True), stored
        assert [chain.refresh().output for chain in chains] == [[False, False]] * 2
        assert effects() == ["follower"]

    return check


OPEN = "open transaction on database 'default'"
BLOCK = "PhaseError: An atomic block was opened inside"


def places(*rows):
    """Parametrize where a handler leaves something open, what it leaves, and the error of its attempt."""
    return pytest.mark.parametrize(
        ("place", "leave", "error"), [(place, leave, error) for place, leaves, error in rows for leave in leaves]
    )


@kinds(*JOBS, *RECORDS)
@places((returns, everything, OPEN), (in_complete, blocks, BLOCK), (raises_in_complete, blocks, "ValueError: no luck"))
def test_what_a_handler_leaves_open_is_rolled_back(check_retried, place, leave, error):
    check_retried(lambda jobs: place(jobs, leave), error)


@places((in_staged_prepare, blocks, BLOCK), (in_atomic_prepare, blocks, BLOCK))
def test_what_is_left_open_in_prepare_is_rolled_back(check_retried, place, leave, error):
    check_retried(lambda jobs: place(jobs, leave), error)


@kinds("plain", "batch")
@places(
    (raises, everything, "ValueError: no luck"),
    (completes_afterwards, everything, "PhaseError: Close your own transaction"),
    (prepares_afterwards, everything, "PhaseError: Close your own transaction"),
)
def test_what_was_left_open_before_a_phase_or_an_error_is_rolled_back(check_retried, place, leave, error):
    check_retried(lambda jobs: place(jobs, leave), error)


@kinds("plain", "batch")
@pytest.mark.parametrize("leave", blocks)
def test_block_left_open_in_atomic_mode_is_rolled_back(check_retried, leave):
    check_retried(lambda jobs: returns(jobs, leave), BLOCK, mode="atomic")


@pytest.mark.parametrize("leave", everything)
def test_staged_prepare_before_an_open_transaction_stays_committed(scenario, leave):
    def messy(jobs):
        yield prepare(write(jobs, "prepared"))
        yield from returns(jobs, leave)

    scenario.enqueue(messy)
    scenario.run()
    assert (scenario.states(), effects()) == ({"retried"}, ["prepared"])


@kinds("plain")
def test_raw_transaction_is_ended_even_if_its_cursor_is_kept(check_retried):
    """SQLite closes a connection, and releases its locks, only when its last statement is finalized."""
    kept = []

    def leave():
        kept.append(connection.cursor())
        kept[0].execute("BEGIN")

    try:
        check_retried(lambda jobs: returns(jobs, leave), OPEN)
    finally:
        kept.clear()


@kinds("plain")
def test_copy_of_a_connection_does_not_hide_an_open_transaction(check_retried):
    """It has the alias of the slot's own connection, which was open before."""

    def leave():
        connection.ensure_connection()
        with contextlib.closing(connection.copy()) as copy:
            copy.connect()
        leave_an_atomic_block()

    check_retried(lambda jobs: returns(jobs, leave), OPEN)


def test_connection_of_an_alias_that_was_removed_is_closed_with_its_thread(second_alias):
    def connect():
        own = connections[second_alias]
        settings = connections.settings.pop(second_alias)
        try:
            own.connect()
            close_thread_connections()
        finally:
            connections.settings[second_alias] = settings
        return own.connection

    assert elsewhere(lambda store: connect()) is None


def test_transaction_left_open_on_another_database(processors, work, second_alias):
    clean = []

    @processors.register("messy")
    def messy(job):
        transaction.atomic(using=second_alias).__enter__()
        Effect.objects.using(second_alias).create(job_id=job.id, label="left")

    @processors.register("next_user")
    def next_user(job):
        clean.append(not connections[second_alias].in_atomic_block)
        Effect.objects.using(second_alias).create(job_id=job.id, label="next_user")

    chain = messy.enqueue()
    next_user.enqueue(priority=-2)
    work(slots=1)
    assert "open transaction on database 'second'" in chain.refresh().current_job.last_error
    assert clean == [True]
    assert [each.label for each in Effect.objects.using(second_alias)] == ["next_user"]


def test_transaction_that_middleware_leaves_open_around_complete(processors, work, second_alias):
    class Leaves(Middleware):
        @contextlib.contextmanager
        def around_complete(self, job):
            connections[second_alias].cursor().execute("BEGIN")
            yield

    part = Processors(middleware=[Leaves()], backoff=Backoff(100))
    messy = part.register("messy")(lambda job: None).enqueue()
    following = processors.register("following")(lambda job: None).enqueue(priority=-1)
    work(part, processors, slots=1)
    assert "open transaction on database 'second'" in messy.refresh().current_job.last_error
    assert following.refresh().current_job.last_error is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_unfinished_query_does_not_affect_the_next_job(processors, work):
    """SQLite keeps the snapshot of an unfinished query, and refuses to write after others have written."""
    kept = []

    @processors.register("reads")
    def reads(job):
        rows = Effect.objects.iterator(chunk_size=1)
        next(rows)
        kept.append(rows)

    @processors.register("writes")
    def writes(job):
        with job.complete():
            effect(job)

    chains = []
    for number in range(4):
        Effect.objects.create(job_id="0" * 32, label="to read")
        chains += [reads.enqueue(priority=-number), writes.enqueue(priority=-number)]
    work(slots=1)
    kept.clear()
    gc.collect()  # a closed SQLite connection raises an error here
    assert [chain.refresh().current_job.last_error for chain in chains] == [None] * 8
    assert Effect.objects.filter(label="written").count() == 4


def test_handler_may_close_its_connection(processors, work):
    @processors.register("closes")
    def closes(job):
        effect(job, "before")
        connections.close_all()
        with job.complete():
            effect(job, "after")
        return "done"

    chains = [closes.enqueue(), closes.enqueue()]
    work(slots=1)
    assert [chain.refresh().output for chain in chains] == ["done", "done"]
