"""Errors of a codec: ``enqueue`` raises them, jobs fail with them, and failures can still be recorded."""

import pytest
from django.test import override_settings

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.payloads.codecs import NOT_STORED, Unreadable, encode_text
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.events import CodecFailed
from django_jobchains.testing import run_due_jobs
from tests.support.attempts import WITHOUT_WAKE_UPS

pytestmark = pytest.mark.django_db


class Failing:
    """A codec whose method ``fails`` raises ``error``. A text that contains "fine" is always encoded."""

    fails = ""
    error: Exception = RuntimeError("no key")

    def encode(self, text):
        if self.fails == "encode" and "fine" not in text:
            raise self.error
        return text[::-1]

    def decode(self, encoded):
        if self.fails == "decode":
            raise self.error
        return encoded[::-1]


@pytest.fixture(autouse=True)
def _failing(_encrypted, monkeypatch):
    monkeypatch.setattr(Failing, "fails", "")
    setting = {"BACKEND": f"{__name__}.Failing"}
    with override_settings(JOBCHAINS={**WITHOUT_WAKE_UPS, "PAYLOAD_CODEC": setting}):
        yield


@pytest.fixture(autouse=True)
def _echo(processors):
    @processors.register("shop.failed")
    def failed(job):
        return [job.input["input"], job.input["error"], "fine"]

    @processors.register("shop.echo", max_attempts=2, on_failure=failed)
    def echo(job):
        return job.input


def test_an_input_that_cannot_be_encoded_is_not_stored(monkeypatch):
    monkeypatch.setattr(Failing, "fails", "encode")
    with pytest.raises(RuntimeError, match="no key"):
        chains.enqueue("shop.echo", "secret")
    assert not Job.objects.exists()


def test_failures_of_the_codec_are_reported(monkeypatch):
    seen = []
    add_sink(seen.append, CodecFailed)
    try:
        chain = chains.enqueue("shop.echo", "secret")
        monkeypatch.setattr(Failing, "fails", "encode")
        encode_text("secret")
        monkeypatch.setattr(Failing, "fails", "decode")
        assert isinstance(chain.refresh().input, Unreadable)
        monkeypatch.setattr(Failing, "fails", "")
        assert chain.refresh().input == "secret"
    finally:
        remove_sink(seen.append)
    assert seen[0] == CodecFailed("", "encode", "RuntimeError")
    assert set(seen[1:]) == {CodecFailed("", "decode", "RuntimeError")}


def test_an_output_that_cannot_be_encoded_fails_only_its_attempt(monkeypatch, caplog):
    broken, other = chains.enqueue("shop.echo", "secret"), chains.enqueue("shop.echo", "fine")
    monkeypatch.setattr(Failing, "fails", "encode")
    run_due_jobs()
    assert (broken.refresh().status, other.refresh().output) == ("failed", "fine")
    attempts = FailedAttempt.objects.filter(job_id=broken.id)
    assert {(attempt.error, attempt.traceback) for attempt in attempts} == {(NOT_STORED, NOT_STORED)}
    assert broken.last_error == NOT_STORED
    assert Job.objects.get(type_name="shop.failed").output == [None, NOT_STORED, "fine"]
    assert "The payload codec failed" in caplog.text


@pytest.mark.parametrize(("error", "failures"), [(OSError("no network"), 2), (RuntimeError("no key"), 1)])
def test_only_network_errors_are_retried(monkeypatch, error, failures):
    chain = chains.enqueue("shop.echo", "secret")
    monkeypatch.setattr(Failing, "error", error)
    monkeypatch.setattr(Failing, "fails", "decode")
    run_due_jobs()
    monkeypatch.setattr(Failing, "fails", "")
    assert FailedAttempt.objects.filter(job_id=chain.id).count() == failures
