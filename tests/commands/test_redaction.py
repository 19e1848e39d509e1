"""What jobs say is redacted on the terminal and in what programs read from it."""

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.commands.conftest import Run
from tests.interventions.chains_at import mail

SECRET = "hunter2"


@pytest.fixture
def failed(db: None) -> chains.Chain:
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


@pytest.mark.parametrize(
    "words",
    [
        ("show", "ID"),
        ("show", "ID", "--verbose"),
        ("show", "ID", "--format=json"),
        ("list",),
        ("list", "--jobs"),
        ("list", "--format=json"),
        ("status",),
        ("types",),
        ("types", "--format=json"),
    ],
)
def test_no_secret_reaches_the_output(run: Run, failed: chains.Chain, words: tuple[str, ...]) -> None:
    done = run(*(str(failed.id) if word == "ID" else word for word in words))
    assert done.code == 0, done.error
    assert SECRET not in done.out


def test_what_is_no_secret_stays(run: Run, failed: chains.Chain) -> None:
    steps = run("show", failed.id, "--format=json").json["steps"]
    assert steps[0]["input"] == {"password": "********", "to": "x"}
    assert "ValueError: token='********'" in run("show", failed.id).out
