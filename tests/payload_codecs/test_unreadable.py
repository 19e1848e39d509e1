"""A value that cannot be decoded causes an error only for its own job, and the error names the remedy."""

import io
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_jobchains import chains, context
from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import ChainFailed, InvalidOutput
from django_jobchains.models import FailedAttempt, Job, LogLine
from django_jobchains.payloads.codecs import ENCODED, Unreadable
from django_jobchains.processors import Batch, FailedJob, FailJob, RunningJob
from django_jobchains.store.rows import Effects, EndedAttempt
from django_jobchains.testing import run_due_jobs
from tests.payload_codecs.conftest import CANARY, NEW_KEY, OLD_KEY, codec, raw_tables
from tests.support.jobs import expire, failed_try, finished, next_job, running, stored

pytestmark = pytest.mark.django_db
REMEDY = "add it to the keys again, and retry the job"


@pytest.fixture
def shop(processors):
    @processors.register("shop.echo")
    def echo(job):
        return job.input

    @processors.register("shop.sum")
    def add(job):
        return sum(chain.output for chain in job.blockers)

    @processors.register("shop.batch", batch_limit=10)
    def batch(jobs: Batch[Any]):
        for job in jobs:
            job.finish(job.input)

    @processors.register("shop.failing")
    def failing(job):
        job.log(f"log {CANARY}", secret=CANARY)
        job.set_progress(0.5, f"progress {CANARY}")
        raise FailJob(CANARY)

    return processors


@pytest.mark.parametrize("type_name", ["shop.echo", "shop.batch"])
def test_only_the_job_itself_fails(shop, type_name):
    lost = chains.enqueue(type_name, CANARY)
    with codec(NEW_KEY):
        others = [chains.enqueue(type_name, number) for number in range(3)]
        run_due_jobs()
        assert [chains.get(chain.id).output for chain in others] == [0, 1, 2]
        failed = chains.get(lost.id)
        assert (failed.status, failed.current_job.attempt) == ("failed", 1)
        assert failed.last_error is not None
        assert failed.last_error.startswith("InvalidInput: ")
        assert REMEDY in failed.last_error
    with codec(NEW_KEY, OLD_KEY):
        chains.retry(lost.id)
        run_due_jobs()
        assert chains.get(lost.id).output == CANARY


def test_on_failure_gets_the_reason_instead_of_an_unreadable_input(processors):
    """The compensation must neither take the encoded text for the input, nor a lost key for a failed step."""
    seen = []

    @processors.register("shop.undo")
    def undo(job: RunningJob[FailedJob]):
        seen.append(job.input)

    @processors.register("shop.pay", on_failure=undo)
    def pay(job):
        return job.input

    lost = pay.enqueue(CANARY)
    with codec(NEW_KEY):
        run_due_jobs()
    [failed] = seen
    assert (failed.job_id, failed.input) == (lost.id, None)
    assert failed.error.startswith("InvalidInput: ")
    for text in (failed.error, failed.input_problem):
        assert REMEDY in text
        assert ENCODED not in text
    with codec(NEW_KEY, OLD_KEY):
        chains.retry(lost.id)
        run_due_jobs()
        assert lost.refresh().output == CANARY


def test_a_job_with_an_unreadable_context_fails(shop):
    with context.bound(actor=CANARY):
        chain = chains.enqueue("shop.echo", 1)
    with codec(NEW_KEY):
        Job.objects.filter(pk=chain.id).update(input=1)
        run_due_jobs()
        assert chain.refresh().status == "failed"
        assert (chain.last_error or "").startswith("InvalidContext: ")


def test_waiting_for_an_unreadable_result_raises(shop):
    done, failed = chains.enqueue("shop.echo", CANARY), chains.enqueue("shop.failing")
    run_due_jobs()
    with codec(NEW_KEY):
        with pytest.raises(InvalidOutput, match=REMEDY):
            done.result(timeout=30)
        with pytest.raises(ChainFailed, match=REMEDY):
            failed.result(timeout=30)


def test_a_handler_with_an_unreadable_blocker_output_is_retried(shop):
    part = chains.enqueue("shop.echo", 2)
    run_due_jobs()
    with codec(NEW_KEY):
        total = chains.enqueue("shop.sum", blockers=[part])
        run_due_jobs(1)
        assert total.refresh().last_error is not None
        assert f"Chain {part.id}" in (total.last_error or "")
        assert REMEDY in (total.last_error or "")
    with codec(NEW_KEY, OLD_KEY):
        run_due_jobs()
        assert total.refresh().output == 2


def test_models_contain_the_reason(shop):
    chain = chains.enqueue("shop.failing", CANARY)
    run_due_jobs()
    with codec(NEW_KEY):
        chain = chains.get(chain.id)
        assert isinstance(chain.input, Unreadable)
        assert REMEDY in str(chain.input)
        attempt, line = FailedAttempt.objects.get(), LogLine.objects.get()
        for text in (chain.last_error, attempt.error, attempt.traceback, line.text, str(line.fields)):
            assert REMEDY in (text or "")


def test_the_admin_shows_the_reason(shop, admin_client):
    chain = chains.enqueue("shop.failing", CANARY)
    run_due_jobs()
    addresses = [
        reverse("admin:django_jobchains_chain_changelist"),
        reverse("admin:django_jobchains_job_changelist"),
        reverse("admin:django_jobchains_chain_change", args=[chain.id]),
        reverse("admin:django_jobchains_job_change", args=[chain.id]),
        reverse("admin:django_jobchains_dashboard"),
    ]
    with codec(NEW_KEY):
        for address in addresses:
            page = admin_client.get(address)
            assert page.status_code == 200
            assert "cannot decode the stored value" in page.content.decode(), address
    chains.retry(chain.id)
    with codec(NEW_KEY):
        page = admin_client.get(reverse("admin:django_jobchains_chain_complete", args=[chain.id]))
        assert "Cannot be displayed: JOBCHAINS" in page.content.decode()


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_command_line_shows_the_reason(shop, form, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    chain = chains.enqueue("shop.failing", CANARY)
    run_due_jobs()
    with codec(NEW_KEY):
        for command in (["show", chain.id, "--verbose"], ["list"], ["status"]):
            out = io.StringIO()
            call_command("jobchains", *map(str, command), "--format", form, stdout=out)
            assert "PAYLOAD_CODEC" in out.getvalue(), command


def test_deferred_outcomes_and_the_reaper_need_no_key(store):
    done, failed, crashed = running(store, 3, input='"secret"', context='{"actor": "secret"}')
    store.deferred.defer(
        [
            EndedAttempt("completed", finished(done, None, next_job(done, context=done.context))),
            EndedAttempt("failed", failed_try(failed, error="Boom: secret")),
        ]
    )
    expire(crashed)
    with codec(NEW_KEY):
        store.deferred.apply(10, 0, Effects())
        assert [job.id for job in store.leases.reap(10, Backoff(), 10)] == [crashed.id]
        assert (stored(done).status, stored(failed).status) == ("completed", "failed")
    assert stored(failed).last_error == "Boom: secret"
    assert chains.get(done.chain_id).current_job.context == {"actor": "secret"}
    assert "secret" not in raw_tables()
