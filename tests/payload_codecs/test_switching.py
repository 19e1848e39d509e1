"""A codec can be enabled and disabled, and its keys rotated, while jobs wait."""

import pytest
from django.core.exceptions import FieldError

from django_jobchains import chains
from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.payloads.codecs import ENCODED
from django_jobchains.processors import RescheduleJob
from django_jobchains.testing import run_due_jobs
from django_jobchains.testing.contracts.payload_codecs import JSON_VALUES
from tests.payload_codecs.conftest import NEW_KEY, OLD_KEY, codec

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _echo(processors):
    @processors.register("shop.echo")
    def echo(job):
        return job.input

    @processors.register("shop.log")
    def log(job):
        job.log(f"{ENCODED}x")
        job.set_progress(1, f"{ENCODED}x")

    @processors.register("shop.reschedule")
    def reschedule(job):
        raise RescheduleJob(delay=60, reason=f"{ENCODED}x")


@pytest.mark.parametrize("value", JSON_VALUES)
def test_values_are_read_back_equal(value):
    chain = chains.enqueue("shop.echo", value)
    run_due_jobs()
    chain = chains.get(chain.id)
    assert [chain.input, chain.output, chain.result(timeout=30)] == [value] * 3


def test_rows_stored_without_a_codec_are_read_and_their_jobs_run():
    with codec():
        chain, waiting = chains.enqueue("shop.echo", "plain"), chains.enqueue("shop.echo", "plain", delay=60)
        run_due_jobs()
    assert [chain.refresh().output, chain.input] == ["plain"] * 2
    chains.run_now(waiting.id)
    run_due_jobs()
    assert waiting.refresh().output == "plain"


def test_without_the_codec_errors_name_the_setting():
    chain = chains.enqueue("shop.echo", "secret")
    with codec():
        other = chains.enqueue("shop.echo", "plain")
        run_due_jobs()
        assert other.refresh().output == "plain"
        assert "JOBCHAINS['PAYLOAD_CODEC'] is not set" in (chain.refresh().last_error or "")


def test_keys_can_be_rotated():
    old = chains.enqueue("shop.echo", "old")
    with codec(OLD_KEY, NEW_KEY):  # first, every process can read values of the new key
        assert chains.get(old.id).input == "old"
    with codec(NEW_KEY, OLD_KEY):  # then the new key encrypts
        new = chains.enqueue("shop.echo", "new")
        run_due_jobs()
        assert chains.get(old.id).output == "old"
    with codec(NEW_KEY):  # finally, the old key is removed
        assert chains.get(new.id).input == "new"


@pytest.mark.parametrize("keys", [(), (OLD_KEY,)])
def test_an_input_with_the_marker_is_refused_because_it_would_be_decoded(keys):
    chain = chains.enqueue("shop.echo", "secret")
    with codec():
        [copied] = Job.objects.filter(pk=chain.id).extra(select={"raw": "CAST(input AS text)"}).values_list("raw")
    with codec(*keys):
        with pytest.raises(InvalidInput, match="cannot begin with"):
            chains.enqueue("shop.echo", copied[0].strip('"'))
        assert chains.enqueue("shop.echo", [f"{ENCODED}x"]).refresh().input == [f"{ENCODED}x"]


@pytest.mark.parametrize("keys", [(), (OLD_KEY,)])
def test_a_log_line_with_the_marker_is_text(keys):
    with codec(*keys):
        chains.enqueue("shop.log")
        run_due_jobs()
        assert LogLine.objects.get().text == f" {ENCODED}x"
        assert JobProgress.objects.get().text == f" {ENCODED}x"


@pytest.mark.parametrize("keys", [(), (OLD_KEY,)])
def test_a_reason_with_the_marker_is_text(keys):
    with codec(*keys):
        chain = chains.enqueue("shop.reschedule")
        run_due_jobs()
        assert chain.refresh().last_error == f" {ENCODED}x"


def test_a_condition_on_an_encoded_column_raises():
    for condition in ({"input__order": 7}, {"input": 7}, {"context__tenant": "acme"}, {"last_error__contains": "no"}):
        with pytest.raises(FieldError, match=r"JOBCHAINS\['PAYLOAD_CODEC'\] encodes it"):
            Job.objects.filter(**condition)
    with pytest.raises(FieldError):
        FailedAttempt.objects.filter(job__context__tenant="acme")
    assert not Job.objects.filter(output__isnull=False).exists()
    with codec():
        chain = chains.enqueue("shop.echo", {"order": 7})
        assert Job.objects.get(input__order=7).pk == chain.id
