"""Errors of a codec: ``enqueue`` raises them, jobs fail with them, and failures can still be recorded."""

import pytest
from django.test import override_settings

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.payloads.codecs import NOT_STORED, Unreadable, encode_text
from django_jobchains.telemetry import add_sink
from django_jobchains.telemetry.events import CodecFailed
from django_jobchains.testing import run_due_jobs
from tests.support.attempts import WITHOUT_WAKE_UPS
from tests.support.tracing import recording

pytestmark = pytest.mark.django_db


class Failing:
    """A codec whose method ``fails`` raises ``error``. A text that contains "fine" is always encoded."""

    fails = ""
    error = RuntimeError("no key")

    def encode(self, text):
        if self.fails == "encode" and "fine" not in text:
            raise self.error
        return text[::-1]

    def decode(self, encoded):
        if self.fails == "decode":
            raise self.error
        return encoded[::-1]


@pytest.fixture(autouse=True)
def failing(_encrypted, monkeypatch):
    """Return a function that lets one method of the codec fail."""
    setting = {"BACKEND": f"{__name__}.Failing"}
    with override_settings(JOBCHAINS={**WITHOUT_WAKE_UPS, "PAYLOAD_CODEC": setting}):
        yield lambda name: monkeypatch.setattr(Failing, "fails", name)


@pytest.fixture(autouse=True)
def _echo(processors):
    processors.register("shop.failed")(lambda job: [job.input["input"], job.input["error"], "fine"])
    processors.register("shop.echo", max_attempts=2, on_failure="shop.failed")(lambda job: job.input)


def test_an_input_that_cannot_be_encoded_is_not_stored(failing):
    failing("encode")
    with pytest.raises(RuntimeError, match="no key"):
        chains.enqueue("shop.echo", "secret")
    assert not Job.objects.exists()


def test_failures_of_the_codec_are_reported(failing, events):
    add_sink(events, CodecFailed)
    chain = chains.enqueue("shop.echo", "secret")
    failing("encode")
    encode_text("secret")
    failing("decode")
    assert isinstance(chain.refresh().input, Unreadable)
    failing("")
    assert chain.refresh().input == "secret"
    first, *others = events.of(CodecFailed)
    assert first == CodecFailed("", "encode", "RuntimeError")
    assert set(others) == {CodecFailed("", "decode", "RuntimeError")}


def test_an_output_that_cannot_be_encoded_fails_only_its_attempt(failing, caplog):
    broken, other = chains.enqueue("shop.echo", "secret"), chains.enqueue("shop.echo", "fine")
    failing("encode")
    run_due_jobs()
    assert (broken.refresh().status, other.refresh().output) == ("failed", "fine")
    attempts = FailedAttempt.objects.filter(job_id=broken.id)
    assert {(attempt.error, attempt.traceback) for attempt in attempts} == {(NOT_STORED, NOT_STORED)}
    assert broken.last_error == NOT_STORED
    assert Job.objects.get(type_name="shop.failed").output == [None, NOT_STORED, "fine"]
    assert "The payload codec failed" in caplog.text


def test_a_chain_of_on_failure_whose_trace_cannot_be_encoded_has_the_context_of_the_failed_job(failing, caplog):
    with recording() as recorded:
        broken = chains.enqueue("shop.echo", "secret")
        failing("encode")
        run_due_jobs()
    failing("")
    assert broken.refresh().status == "failed"
    assert Job.objects.get(type_name="shop.failed").context == broken.current_job.context
    assert recorded.all("send shop.failed") == []
    assert "could not be stored: RuntimeError: no key" in caplog.text


@pytest.mark.parametrize(("error", "failures"), [(OSError("no network"), 2), (RuntimeError("no key"), 1)])
def test_only_network_errors_are_retried(failing, monkeypatch, error, failures):
    chain = chains.enqueue("shop.echo", "secret")
    monkeypatch.setattr(Failing, "error", error)
    failing("decode")
    run_due_jobs()
    failing("")
    assert FailedAttempt.objects.filter(job_id=chain.id).count() == failures
