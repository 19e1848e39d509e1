"""A worker that ends, or an attempt in a child process, waits for an export only for a limited time."""

import threading

import pytest

from django_jobchains.telemetry import tracing


class Hanging:
    """A tracing system whose collector does not answer until the test ends."""

    def __init__(self):
        self.answered = threading.Event()
        self.calls = 0

    def flush(self, seconds):
        self.calls += 1
        self.answered.wait(60)


@pytest.fixture
def hanging(monkeypatch):
    hanging = Hanging()
    monkeypatch.setattr(tracing, "_tracing", hanging)
    monkeypatch.setattr(tracing, "_flushing", None)
    yield hanging
    hanging.answered.set()


def test_an_export_that_hangs_is_left_to_itself(hanging):
    tracing.flush(0.01)
    tracing.flush(0.01)
    assert not hanging.answered.is_set()
    assert hanging.calls == 1
