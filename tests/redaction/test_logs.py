"""What a worker says of its attempts in the log."""

from uuid import uuid4

import pytest

from django_jobchains.telemetry import report
from django_jobchains.telemetry.events import AttemptEnded


def test_secrets_in_errors_are_masked_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    error = "ConnectionError: no answer, token=c4n4ry"
    report(AttemptEnded("worker", uuid4(), uuid4(), "shop.charge", 1, "failed", 0.1, error, None))
    (record,) = caplog.records
    assert "no answer" in record.getMessage()
    assert "c4n4ry" not in record.getMessage()
    assert "c4n4ry" not in str(vars(record)["jobchains"])
