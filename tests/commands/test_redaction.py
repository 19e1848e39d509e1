"""Errors and payloads are redacted in all output."""

import pytest

from django_jobchains.models import FailedAttempt, Job
from tests.support.chains import mail

SECRET = "hunter2"


@pytest.fixture
def failed(db):
    chain = mail.enqueue({"password": SECRET, "to": "x"})
    error = f"ValueError: token='{SECRET}'"
    Job.objects.filter(pk=chain.id).update(status="failed", last_error=error, attempt=1, lease_number=1)
    job = Job.objects.get(pk=chain.id)
    FailedAttempt.objects.create(
        job=job,
        attempt=1,
        lease_number=1,
        kind="error",
        error=error,
        traceback=f"File\n  login(password='{SECRET}')\n{error}",
        worker="w",
        started_at=job.created_at,
        finished_at=job.created_at,
    )
    return chain


def test_no_secret_is_printed(run, failed):
    for words in (
        ("show", failed.id),
        ("show", failed.id, "--verbose"),
        ("show", failed.id, "--format=json"),
        ("list",),
        ("list", "--jobs"),
        ("list", "--format=json"),
        ("status",),
        ("types",),
        ("types", "--format=json"),
    ):
        done = run(*words)
        assert done.code == 0, done.error
        assert SECRET not in done.out, words


def test_other_values_are_printed(run, failed):
    steps = run("show", failed.id, "--format=json").json["steps"]
    assert steps[0]["input"] == {"password": "********", "to": "x"}
    assert "ValueError: token='********'" in run("show", failed.id).out
