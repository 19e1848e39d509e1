"""A handler completes its job by returning, or in a transaction with its own writes."""

from django.db import connection, transaction

from django_jobchains.models import Job
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed


def effects():
    return list(Effect.objects.order_by("id").values_list("label", flat=True))


def test_returned_value_completes_the_job_with_it(processors, work):
    @processors.register("double")
    def double(job):
        return 2 * job.input

    chain = double.enqueue(21)
    work()
    job = chain.refresh().current_job
    assert (job.status, job.output, job.attempt) == ("completed", 42, 1)
    assert (chain.status, chain.output) == ("completed", 42)


def test_completed_job_has_no_lease_and_records_its_worker_and_times(processors, work):
    @processors.register("quiet")
    def quiet(job):
        pass

    chain = quiet.enqueue()
    work(name="mail")
    job = chain.refresh().current_job
    assert (job.leased_by, job.leased_until, job.last_error) == (None, None, None)
    assert job.completed_by is not None
    assert job.completed_by.startswith("mail:")
    assert job.created_at <= job.last_attempt_at <= job.finished_at


def test_handler_gets_its_job(processors, work):
    seen = []

    @processors.register("reads")
    def reads(job):
        seen.append(job)

    chain = reads.enqueue({"a": 1}, priority=3, queue="mail")
    work()
    (job,) = seen
    row = chain.current_job
    assert (job.id, job.chain_id, job.type_name, job.input) == (chain.id, chain.id, "reads", {"a": 1})
    assert (job.attempt, job.priority, job.queue, job.last_error) == (1, 3, "mail", None)
    assert (job.created_at, job.run_at) == (row.created_at, row.run_at)
    assert job.created_at.utcoffset() is not None
    assert not job.signal.aborted


def test_no_transaction_is_open_while_a_staged_handler_runs(processors, work):
    open_ = []

    @processors.register("reads")
    def reads(job):
        open_.append(connection.in_atomic_block)
        with job.prepare():
            open_.append(connection.in_atomic_block)
        open_.append(connection.in_atomic_block)
        with job.complete():
            open_.append(connection.in_atomic_block)

    reads.enqueue()
    work()
    assert open_ == [False, True, False, True]


def test_transaction_of_atomic_prepare_stays_open_until_the_handler_returns(processors, work):
    open_ = []

    @processors.register("reads")
    def reads(job):
        with job.prepare(mode="atomic"):
            Effect.objects.create(job_id=job.id, label="prepared")
        open_.append(connection.in_atomic_block)
        with job.complete():
            Effect.objects.create(job_id=job.id, label="completed")
        open_.append(connection.in_atomic_block)
        return "done"

    chain = reads.enqueue()
    work()
    assert open_ == [True, True]
    assert effects() == ["prepared", "completed"]
    assert (chain.refresh().status, chain.output) == ("completed", "done")


def test_atomic_mode_runs_the_whole_handler_in_the_completion_transaction(processors, work):
    open_ = []

    @processors.register("reads", mode="atomic")
    def reads(job):
        open_.append(connection.in_atomic_block)
        Effect.objects.create(job_id=job.id, label="done")
        return "done"

    chain = reads.enqueue()
    work()
    assert open_ == [True]
    assert effects() == ["done"]
    assert chain.refresh().output == "done"


def test_complete_may_be_used_in_atomic_mode(processors, work):
    @processors.register("both", mode="atomic")
    def both(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="done")
        return "done"

    chain = both.enqueue()
    work()
    assert effects() == ["done"]
    assert chain.refresh().output == "done"


def test_complete_commits_when_the_handler_returns(processors, work):
    open_ = []

    @processors.register("late")
    def late(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="done")
        open_.append(connection.in_atomic_block)
        Effect.objects.create(job_id=job.id, label="afterwards")

    late.enqueue()
    work()
    assert open_ == [True]
    assert effects() == ["done", "afterwards"]


def test_staged_prepare_is_committed_at_the_end_of_its_block(processors, work):
    ran = []

    @processors.register("staged")
    def staged(job):
        with job.prepare(mode="staged"):
            Effect.objects.create(job_id=job.id, label="prepared")
            transaction.on_commit(lambda: ran.append("on_commit"))
        assert ran == ["on_commit"]
        return "done"

    chain = staged.enqueue()
    work()
    assert effects() == ["prepared"]
    assert chain.refresh().output == "done"


def test_on_commit_hooks_of_complete_run_after_the_job_is_completed(processors, work):
    statuses = []

    @processors.register("hooked")
    def hooked(job):
        with job.complete():
            transaction.on_commit(lambda: statuses.append(Job.objects.get(pk=job.id).status))

    hooked.enqueue()
    work()
    assert statuses == ["completed"]
