"""The terminal output of ``run_jobworker`` for delayed outcomes."""

from uuid import uuid4

import pytest
from django.core.management.color import no_style

from django_jobchains.telemetry.events import OutcomeDelayed
from django_jobchains.telemetry.terminal import TerminalSink

JOB_ID = uuid4()


@pytest.mark.parametrize(
    ("error", "reason"),
    [("", "another transaction has locked it, or a job that waits for it"), ("the database is gone", "the database")],
)
def test_outcome_that_cannot_be_stored_is_shown_with_the_reason(error, reason):
    lines: list[str] = []
    TerminalSink(lines.append, no_style(), 1, "worker-1")(OutcomeDelayed("worker-1", JOB_ID, "shop.ship", 5.04, error))
    [line] = lines
    assert f"shop.ship {JOB_ID}" in line
    assert "not stored for 5.0 s" in line
    assert reason in line


def test_delayed_outcome_is_not_shown_with_verbosity_0():
    lines: list[str] = []
    TerminalSink(lines.append, no_style(), 0, "worker-1")(OutcomeDelayed("worker-1", JOB_ID, "shop.ship", 5.0, ""))
    assert lines == []
