"""Which signals count as a second request to stop."""

import signal

import pytest

from django_jobchains.worker.process import COPIES_SECONDS, StopRequest
from tests.support.clocks import Clock


@pytest.fixture
def clock():
    return Clock()


def test_first_signal_is_not_urgent(clock):
    request = StopRequest(clock)
    assert (request.is_made, request.expects_copies) == (False, False)
    request.on_signal(signal.SIGTERM, None)
    assert (request.is_made, request.is_urgent, request.expects_copies) == (True, False, True)


def test_second_signal_is_urgent_unless_it_is_a_copy(clock):
    request = StopRequest(clock)
    for _ in range(3):
        request.on_signal(signal.SIGTERM, None)
        clock.now += COPIES_SECONDS / 2  # measured from the first signal: a copy does not extend the period
    assert (request.is_urgent, request.expects_copies) == (False, False)
    request.on_signal(signal.SIGINT, None)
    assert request.is_urgent


def test_only_the_supervisor_makes_the_request_of_its_worker_urgent(clock):
    request = StopRequest(clock)
    request.has_supervisor = True
    for _ in range(3):
        request.on_signal(signal.SIGTERM, None)
        clock.now += 60
    assert (request.is_made, request.is_urgent) == (True, False)
    request.make_urgent()
    assert request.is_urgent


def test_signal_after_a_stop_by_the_program_counts_as_the_first(clock):
    request = StopRequest(clock)
    request.make()
    clock.now += 60
    request.on_signal(signal.SIGTERM, None)
    assert (request.is_made, request.is_urgent) == (True, False)
