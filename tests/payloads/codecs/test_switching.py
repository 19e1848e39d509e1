"""A codec can be enabled and disabled, and its keys rotated, while jobs wait."""

import pytest
from django.core.exceptions import FieldError

from django_jobchains import chains
from django_jobchains.attempts.outcome import crashed_try
from django_jobchains.declare.policies import resolve
from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.pools import ChildCrashed
from django_jobchains.processors import RescheduleJob
from django_jobchains.store import get_store
from django_jobchains.testing import run_due_jobs
from django_jobchains.testing.contracts.payloads import JSON_VALUES
from django_jobchains.text.errors import ENCODED
from tests.payloads.codecs.conftest import NEW_KEY, OLD_KEY, codec
from tests.records.models import Upload
from tests.support.jobs import running_job

pytestmark = pytest.mark.django_db

with_and_without_codec = pytest.mark.parametrize("keys", [(), (OLD_KEY,)])


@pytest.fixture(autouse=True)
def _echo(processors):
    processors.register("shop.echo")(lambda job: job.input)


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
        assert "JOBCHAINS['PAYLOAD_CODEC'] is not set" in chain.refresh().last_error


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


@with_and_without_codec
def test_an_input_with_the_marker_is_refused_because_it_would_be_decoded(keys):
    with codec(*keys):
        with pytest.raises(InvalidInput, match="cannot begin with"):
            chains.enqueue("shop.echo", f"{ENCODED}x")
        assert chains.enqueue("shop.echo", [f"{ENCODED}x"]).refresh().input == [f"{ENCODED}x"]


@with_and_without_codec
def test_a_text_with_the_marker_is_text(processors, keys):
    @processors.register("shop.marked")
    def marked(job):
        job.log(f"{ENCODED}x")
        job.set_progress(1, f"{ENCODED}x")
        raise RescheduleJob(delay=60, reason=f"{ENCODED}x")

    with codec(*keys):
        chain = marked.enqueue()
        run_due_jobs()
        texts = [LogLine.objects.get().text, JobProgress.objects.get().text, chain.refresh().last_error]
        assert texts == [f" {ENCODED}x"] * 3


@with_and_without_codec
def test_an_error_with_the_marker_is_text(processors, keys):
    @processors.register("shop.marked", max_attempts=1)
    def marked(job):
        raise type(f"{ENCODED}x", (Exception,), {})

    with codec(*keys):
        chain = marked.enqueue()
        run_due_jobs()
        assert chain.refresh().last_error == f" {ENCODED}x"


@with_and_without_codec
def test_the_last_output_of_a_crashed_process_with_the_marker_is_text(registry, keys):
    """A handler may print its input, which may be an encoded value that a user has found in the table."""
    with codec(*keys):
        printed = f"{ENCODED}x"
        job, processor = running_job(get_store()), registry.processor("shop.echo")
        outcome = crashed_try(job, processor, resolve(), ChildCrashed(-9, printed), printed)
        get_store().attempts.reschedule([outcome.failed])
        assert FailedAttempt.objects.get().traceback == f" {printed}"


@with_and_without_codec
def test_a_value_with_the_marker_that_a_project_saves_is_text(keys):
    with codec(*keys):
        Upload.objects.create(failure_message=f"{ENCODED}x", execution_logs=f"{ENCODED}x")
        [row] = Upload.objects.values_list("failure_message", "execution_logs")
        assert row == (f" {ENCODED}x",) * 2


@pytest.mark.parametrize(
    ("model", "condition"),
    [
        (Job, {"input__order": 7}),
        (Job, {"input": 7}),
        (Job, {"context__tenant": "acme"}),
        (Job, {"last_error__contains": "no"}),
        (FailedAttempt, {"job__context__tenant": "acme"}),
        (Upload, {"failure_message__contains": "no"}),
        (Upload, {"execution_logs__0__key": "x"}),
    ],
)
def test_a_condition_on_an_encoded_column_raises(model, condition):
    with pytest.raises(FieldError, match=r"JOBCHAINS\['PAYLOAD_CODEC'\] encodes it"):
        model.objects.filter(**condition)
    assert not model.objects.filter(**{f"{min(condition).partition('__')[0]}__isnull": False}).exists()


def test_without_a_codec_conditions_compare_values():
    with codec():
        chain = chains.enqueue("shop.echo", {"order": 7})
        assert Job.objects.get(input__order=7).pk == chain.id
