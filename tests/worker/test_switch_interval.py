"""How soon a thread that returns from the database gets the interpreter from a handler that computes."""

import sys
import time
from types import SimpleNamespace

import pytest

from django_jobchains.worker import threads
from django_jobchains.worker.threads import COMPUTING_INTERVAL, USUAL_INTERVAL, SwitchInterval


def test_interval_is_shorter_while_a_handler_computes(processors, make_worker):
    @processors.register("worker.compute")
    def compute(job):
        deadline = time.monotonic() + 30
        while sys.getswitchinterval() != COMPUTING_INTERVAL and time.monotonic() < deadline:
            pass
        return sys.getswitchinterval()

    chain = compute.enqueue(None)
    assert make_worker(burst=True).run() == 0
    assert chain.refresh().output == COMPUTING_INTERVAL
    assert sys.getswitchinterval() == USUAL_INTERVAL


@pytest.mark.parametrize(
    ("attempt_seconds", "cpu_seconds", "interval"),
    [
        pytest.param(0.05, 0.09, COMPUTING_INTERVAL, id="computes"),
        pytest.param(0.05, 0.03, COMPUTING_INTERVAL, id="computes-on-a-busy-machine"),
        pytest.param(0.05, 0.01, USUAL_INTERVAL, id="waits"),
        pytest.param(0.0001, 0.09, USUAL_INTERVAL, id="many-short-handlers"),
    ],
)
def test_interval_depends_on_cpu_time_and_duration(monkeypatch, attempt_seconds, cpu_seconds, interval):
    now = SimpleNamespace(monotonic=lambda: 100.0, process_time=lambda: 50.0)
    monkeypatch.setattr(threads, "time", now)
    switch_interval = SwitchInterval()
    now.monotonic, now.process_time = lambda: 100.1, lambda: 50.0 + cpu_seconds
    try:
        switch_interval.adapt(attempt_seconds)
        assert sys.getswitchinterval() == interval
    finally:
        switch_interval.restore()
