"""With a codec, no table contains a payload in plain text, and every reader decodes it."""

import io
import json

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_jobchains import chains, context
from django_jobchains.exceptions import ChainFailed
from django_jobchains.models import FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.processors import FailJob
from django_jobchains.store.rows import Effects, EndedAttempt
from django_jobchains.testing import run_due_jobs
from tests.payload_codecs.conftest import CANARY, raw_tables
from tests.support.jobs import failed_try, finished, new_job, next_job, running, stored

pytestmark = pytest.mark.django_db

SECRET = {"card": CANARY}
#: Longer than the part of an error that lists read: to decode an encoded error, they must read all of it.
MESSAGE = f"error {CANARY} {'long ' * 500}end"


@pytest.fixture
def shop(processors):
    """Register types whose handlers store payloads everywhere, and check what they receive."""

    @processors.register("shop.part", entry=True)
    def part(job):
        assert job.input == SECRET
        return SECRET

    @processors.register("shop.order")
    def order(job):
        assert job.input == SECRET
        assert job.context == {"actor": CANARY}
        assert [chain.output for chain in job.blockers] == [SECRET]
        job.log(f"log {CANARY}", secret=SECRET)
        job.set_progress(0.5, f"progress {CANARY}")
        if job.attempt == 1:
            raise RuntimeError(MESSAGE)
        assert job.last_error == f"RuntimeError: {MESSAGE}"
        return job.continue_with("shop.receipt", SECRET)

    @processors.register("shop.receipt", entry=False)
    def receipt(job):
        assert (job.input, job.context) == (SECRET, {"actor": CANARY})
        return SECRET

    @processors.register("shop.failed")
    def failed(job):
        assert (job.input["input"], job.input["error"], job.context) == (
            SECRET,
            f"FailJob: {CANARY}",
            {"actor": CANARY},
        )

    @processors.register("shop.failing", on_failure="shop.failed")
    def failing(job):
        raise FailJob(CANARY)

    return processors


def order():
    """Enqueue an order with a blocker."""
    with context.bound(actor=CANARY):
        return chains.enqueue("shop.order", SECRET, blockers=[chains.enqueue("shop.part", SECRET)])


def test_no_table_contains_a_payload_and_the_api_reads_it(shop):
    chain = order()
    assert chain.input == SECRET
    run_due_jobs()
    assert CANARY not in raw_tables()
    chain = chains.get(chain.id)
    assert (chain.status, chain.input, chain.output) == ("completed", SECRET, SECRET)
    assert chain.result(timeout=30) == SECRET
    assert [(job.input, job.context) for job in chain.jobs] == [(SECRET, {"actor": CANARY})] * 2
    attempt = FailedAttempt.objects.get()
    assert attempt.error == f"RuntimeError: {MESSAGE}"
    assert attempt.traceback.endswith(f"RuntimeError: {MESSAGE}\n")
    assert {(line.text, json.dumps(line.fields)) for line in LogLine.objects.all()} == {
        (f"log {CANARY}", json.dumps({"secret": SECRET}))
    }
    assert JobProgress.objects.get().text == f"progress {CANARY}"


def test_the_error_of_a_failed_chain_is_encoded(shop):
    with context.bound(actor=CANARY):
        chain = chains.enqueue("shop.failing", SECRET)
    run_due_jobs()
    assert CANARY not in raw_tables()
    assert Job.objects.get(type_name="shop.failed").status == "completed"
    assert chains.get(chain.id).last_error == chain.current_job.last_error == f"FailJob: {CANARY}"
    with pytest.raises(ChainFailed, match=CANARY):
        chain.result(timeout=30)


def test_payloads_of_a_chain_that_is_completed_by_hand_are_encoded(shop):
    chain = order()
    with chains.current_job(chain.id) as current:
        assert current.job.input == SECRET
        current.continue_with("shop.receipt", SECRET)
        assert (current.job.input, current.job.context) == (SECRET, {"actor": CANARY})
        current.finish(SECRET)
    assert CANARY not in raw_tables()
    assert chain.refresh().output == SECRET


def test_deferred_outcomes_are_encoded(store):
    done, continued, failed = running(store, 3)
    output, error = json.dumps(SECRET), f"Boom: {CANARY}"
    follower = next_job(continued, input=output, context=output)
    attempts = [
        EndedAttempt("completed", finished(done, output)),
        EndedAttempt("completed", finished(continued, None, follower)),
        EndedAttempt("failed", failed_try(failed, error=error, traceback=error)),
    ]
    store.deferred.defer(attempts)
    assert CANARY not in raw_tables()
    store.deferred.apply(10, 0, Effects())
    assert CANARY not in raw_tables()
    assert stored(done).output == SECRET
    saved = Job.objects.get(pk=follower.id)
    assert (saved.input, saved.context) == (SECRET, SECRET)
    attempt = FailedAttempt.objects.get()
    assert [stored(failed).last_error, attempt.error, attempt.traceback] == [error] * 3


def test_a_saved_instance_is_encoded(store):
    job = Job.objects.get(pk=store.jobs.create([new_job(input=json.dumps(SECRET))])[0].id)
    job.output, job.last_error = SECRET, CANARY
    job.save()
    assert CANARY not in raw_tables()
    saved = Job.objects.get(pk=job.pk)
    assert (saved.input, saved.output, saved.last_error) == (SECRET, SECRET, CANARY)


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_command_line_shows_payloads(shop, form, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    chain = order()
    run_due_jobs(3)
    for command in (["show", chain.id, "--verbose"], ["status"]):
        out = io.StringIO()
        call_command("jobchains", *map(str, command), "--format", form, stdout=out)
        assert CANARY in out.getvalue(), command


@pytest.mark.parametrize("may_view", [True, False])
def test_the_pages_of_the_admin_show_payloads_only_with_the_permission(shop, may_view, django_user_model):
    chain = order()
    run_due_jobs(2)  # the blocker, and a failed attempt
    client = signed_in(django_user_model, may_view=may_view)
    job = chain.refresh().current_job
    addresses = {
        "the list of chains": reverse("admin:django_jobchains_chain_changelist"),
        "the list of jobs": reverse("admin:django_jobchains_job_changelist"),
        "a chain": reverse("admin:django_jobchains_chain_change", args=[chain.id]),
        "a job": reverse("admin:django_jobchains_job_change", args=[job.id]),
        "the dashboard": reverse("admin:django_jobchains_dashboard"),
        "completing": reverse("admin:django_jobchains_chain_complete", args=[chain.id]),
    }
    pages = {name: client.get(address).content.decode() for name, address in addresses.items()}
    assert {name for name, page in pages.items() if CANARY in page} == (set(addresses) if may_view else set())
    assert all("jobchains-codec" not in page for page in pages.values())
    assert "RuntimeError" in pages["the list of jobs"]


def signed_in(users, *, may_view):
    from django.contrib.auth.models import Permission

    user = users.objects.create_user("staff", is_staff=True)
    allowed = {"view_chain", "view_job", "complete_job", *(["view_payload"] if may_view else [])}
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="django_jobchains", codename__in=allowed)
    )
    client = Client()
    client.force_login(user)
    return client
