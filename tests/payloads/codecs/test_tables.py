"""With a codec, no table contains a payload in plain text, and every reader decodes it or shows why it cannot."""

import io
import json

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_jobchains import chains, context
from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import ChainFailed, InvalidOutput
from django_jobchains.models import FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.payloads.codecs import Unreadable
from django_jobchains.processors import Deduplicate, FailJob
from django_jobchains.store.rows import Effects, EndedAttempt
from django_jobchains.testing import run_due_jobs
from django_jobchains.text.errors import ENCODED
from tests.payloads.codecs.conftest import CANARY, NEW_KEY, OLD_KEY, codec, raw_tables
from tests.support.jobs import expire, failed_try, finished, new_job, next_job, running, stored

pytestmark = pytest.mark.django_db

SECRET = {"card": CANARY}
ACTOR = {"actor": CANARY}
#: Longer than the part of an error that lists read: to decode an encoded error, they must read all of it.
MESSAGE = f"error {CANARY} {'long ' * 500}end"
REMEDY = "add it to the keys again, and retry the job"


@pytest.fixture
def shop(processors):
    """Register types whose handlers store payloads everywhere, and check what they receive."""

    @processors.register("shop.part", entry=True)
    def part(job):
        return job.input

    @processors.register("shop.batch", batch_limit=10)
    def batch(jobs):
        for job in jobs:
            job.finish(job.input)

    @processors.register("shop.order")
    def order(job):
        assert (job.input, job.context) == (SECRET, ACTOR)
        assert [chain.output for chain in job.blockers] == [SECRET]
        job.log(f"log {CANARY}", secret=SECRET)
        job.set_progress(0.5, f"progress {CANARY}")
        if job.attempt == 1:
            raise RuntimeError(MESSAGE)
        assert job.last_error == f"RuntimeError: {MESSAGE}"
        return job.continue_with("shop.receipt", SECRET)

    @processors.register("shop.receipt", entry=False)
    def receipt(job):
        assert (job.input, job.context) == (SECRET, ACTOR)
        return SECRET

    @processors.register("shop.failed")
    def failed(job):
        return job.input

    @processors.register("shop.failing", on_failure="shop.failed")
    def failing(job):
        raise FailJob(job.input["card"])

    return processors


def order():
    """Enqueue an order with a blocker."""
    with context.bound(**ACTOR):
        return chains.enqueue("shop.order", SECRET, blockers=[chains.enqueue("shop.part", SECRET)])


def test_no_table_contains_a_payload_and_the_api_reads_it(shop):
    chain = order()
    assert chain.input == SECRET
    run_due_jobs()
    assert CANARY not in raw_tables()
    chain = chains.get(chain.id)
    assert (chain.status, chain.input, chain.output, chain.result(timeout=30)) == ("completed", *[SECRET] * 3)
    assert [(job.input, job.context) for job in chain.jobs] == [(SECRET, ACTOR)] * 2
    attempt = FailedAttempt.objects.get()
    assert attempt.error == f"RuntimeError: {MESSAGE}"
    assert attempt.traceback.endswith(f"RuntimeError: {MESSAGE}\n")
    assert [(line.text, line.fields) for line in LogLine.objects.all()] == [(f"log {CANARY}", {"secret": SECRET})] * 2
    assert JobProgress.objects.get().text == f"progress {CANARY}"


def test_values_that_replace_others_are_encoded(shop):
    key = Deduplicate("key", replace=("input",))
    chains.enqueue("shop.part", "old", deduplicate=key)
    with context.bound(**ACTOR):
        chain = chains.enqueue("shop.part", SECRET, deduplicate=key)
    assert (chain.replaced, chain.input, chain.current_job.context) == (True, SECRET, ACTOR)
    assert CANARY not in raw_tables()


def test_the_error_of_a_failed_chain_is_encoded(shop):
    with context.bound(**ACTOR):
        chain = chains.enqueue("shop.failing", SECRET)
    run_due_jobs()
    assert CANARY not in raw_tables()
    compensation = Job.objects.get(type_name="shop.failed")
    assert (compensation.output["input"], compensation.output["error"]) == (SECRET, f"FailJob: {CANARY}")
    assert compensation.context == ACTOR
    assert chains.get(chain.id).last_error == chain.current_job.last_error == f"FailJob: {CANARY}"
    with pytest.raises(ChainFailed, match=CANARY):
        chain.result(timeout=30)


def test_payloads_of_a_chain_that_is_completed_by_hand_are_encoded(shop):
    chain = order()
    with chains.current_job(chain.id) as current:
        assert current.job.input == SECRET
        current.continue_with("shop.receipt", SECRET)
        assert (current.job.input, current.job.context) == (SECRET, ACTOR)
        current.finish(SECRET)
    assert CANARY not in raw_tables()
    assert chain.refresh().output == SECRET


def test_values_of_an_update_are_encoded(store):
    job = Job.objects.get(pk=store.jobs.create([new_job(input=json.dumps(SECRET))])[0].id)
    Job.objects.filter(pk=job.pk).update(output=SECRET, last_error=CANARY)
    assert CANARY not in raw_tables()
    saved = Job.objects.get(pk=job.pk)
    assert (saved.input, saved.output, saved.last_error) == (SECRET, SECRET, CANARY)


def test_deferred_outcomes_and_the_reaper_need_no_key(store):
    done, failed, crashed = running(store, 3, input=json.dumps(SECRET), context=json.dumps(ACTOR))
    output, error = json.dumps(SECRET), f"Boom: {CANARY}"
    follower = next_job(done, input=output, context=done.context)
    attempts = [
        EndedAttempt("completed", finished(done, output, follower)),
        EndedAttempt("failed", failed_try(failed, error=error, traceback=error)),
    ]
    store.deferred.defer(attempts)
    expire(crashed)
    assert CANARY not in raw_tables()
    with codec(NEW_KEY):
        store.deferred.apply(10, 0, Effects())
        assert [job.id for job in store.leases.reap(10, Backoff(), 10)] == [crashed.id]
    assert CANARY not in raw_tables()
    assert [stored(done).status, stored(failed).status] == ["completed", "failed"]
    saved = Job.objects.get(pk=follower.id)
    assert (saved.input, saved.context) == (SECRET, ACTOR)
    attempt = FailedAttempt.objects.get(job_id=failed.id)
    assert [stored(failed).last_error, attempt.error, attempt.traceback] == [error] * 3


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(("key", "shown"), [(OLD_KEY, CANARY), (NEW_KEY, "PAYLOAD_CODEC")])
def test_the_command_line_shows_payloads_or_why_they_cannot_be_decoded(shop, monkeypatch, form, key, shown):
    monkeypatch.setenv("COLUMNS", "300")
    chain = order()
    run_due_jobs(2)  # the blocker, and a failed attempt
    with codec(key):
        for command in (["show", str(chain.id), "--verbose"], ["list"], ["status"]):
            out = io.StringIO()
            call_command("jobchains", *command, "--format", form, stdout=out)
            assert shown in out.getvalue(), command


@pytest.mark.parametrize(
    ("key", "may_view", "shown"),
    [(OLD_KEY, True, CANARY), (OLD_KEY, False, None), (NEW_KEY, True, "cannot decode the stored value")],
)
def test_the_admin_shows_payloads_with_the_permission_or_the_reason(shop, staff, key, may_view, shown):
    chain = order()
    run_due_jobs(2)  # the blocker, and a failed attempt
    client = staff("complete_job", *["view_payload"] * may_view)
    job = chain.refresh().current_job
    addresses = [
        reverse("admin:django_jobchains_chain_changelist"),
        reverse("admin:django_jobchains_job_changelist"),
        reverse("admin:django_jobchains_chain_change", args=[chain.id]),
        reverse("admin:django_jobchains_job_change", args=[job.id]),
        reverse("admin:django_jobchains_dashboard_changelist"),
        reverse("admin:django_jobchains_chain_complete", args=[chain.id]),
    ]
    with codec(key):
        pages = {address: client.get(address, follow=True).content.decode() for address in addresses}
    for address, page in pages.items():
        assert "jobchains-codec" not in page, address
        assert (CANARY in page) == (shown == CANARY), address
        assert (shown or "") in page or "Cannot be displayed: JOBCHAINS" in page, address
    assert key == NEW_KEY or "RuntimeError" in pages[addresses[1]]


# Without its key, a value causes an error only for its own job, and the error names the remedy


@pytest.mark.parametrize("type_name", ["shop.part", "shop.batch"])
def test_only_the_job_with_the_unreadable_input_fails(shop, type_name):
    lost = chains.enqueue(type_name, CANARY)
    with codec(NEW_KEY):
        others = [chains.enqueue(type_name, number) for number in range(3)]
        run_due_jobs()
        assert [chain.refresh().output for chain in others] == [0, 1, 2]
        failed = chains.get(lost.id)
        assert (failed.status, failed.current_job.attempt) == ("failed", 1)
        assert failed.last_error.startswith("InvalidInput: ")
        assert REMEDY in failed.last_error
    with codec(NEW_KEY, OLD_KEY):
        chains.retry(lost.id)
        run_due_jobs()
        assert lost.refresh().output == CANARY


def test_on_failure_gets_the_reason_instead_of_an_unreadable_input(shop):
    """The compensation must neither take the encoded text for the input, nor a lost key for a failed step."""
    lost = chains.enqueue("shop.failing", SECRET)
    with codec(NEW_KEY):
        run_due_jobs()
        given = Job.objects.get(type_name="shop.failed").output
    assert (given["job_id"], given["input"]) == (str(lost.id), None)
    assert given["error"].startswith("InvalidInput: ")
    for text in (given["error"], given["input_problem"]):
        assert REMEDY in text
        assert ENCODED not in text


def test_a_job_with_an_unreadable_context_fails(shop):
    with context.bound(**ACTOR):
        chain = chains.enqueue("shop.part", 1)
    with codec(NEW_KEY):
        Job.objects.filter(pk=chain.id).update(input=1)
        run_due_jobs()
        assert chain.refresh().status == "failed"
        assert chain.last_error.startswith("InvalidContext: ")


def test_waiting_for_an_unreadable_result_raises(shop):
    done, failed = chains.enqueue("shop.part", CANARY), chains.enqueue("shop.failing", SECRET)
    run_due_jobs()
    with codec(NEW_KEY):
        for chain, error in ((done, InvalidOutput), (failed, ChainFailed)):
            with pytest.raises(error, match=REMEDY):
                chain.result(timeout=30)


def test_a_handler_with_an_unreadable_blocker_output_is_retried(shop):
    @shop.register("shop.sum")
    def add(job):
        return sum(chain.output for chain in job.blockers)

    part = chains.enqueue("shop.part", 2)
    run_due_jobs()
    with codec(NEW_KEY):
        total = add.enqueue(blockers=[part])
        run_due_jobs(1)
        assert f"Chain {part.id}" in total.refresh().last_error
        assert REMEDY in total.last_error
    with codec(NEW_KEY, OLD_KEY):
        run_due_jobs()
        assert total.refresh().output == 2


def test_models_contain_the_reason(shop):
    chain = order()
    run_due_jobs(2)
    with codec(NEW_KEY):
        chain = chains.get(chain.id)
        assert isinstance(chain.input, Unreadable)
        attempt, line = FailedAttempt.objects.get(), LogLine.objects.get()
        for text in (chain.input, chain.last_error, attempt.error, attempt.traceback, line.text, line.fields):
            assert REMEDY in str(text)
