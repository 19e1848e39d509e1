"""Which signals count as a second request to stop."""

import signal

import pytest

from django_jobchains.worker.threads import COPIES_SECONDS, StopRequest
from tests.support.clocks import Clock


class Request(StopRequest):
    def __init__(self):
        self.clock = Clock()
        super().__init__(self.clock)

    def signals(self, count, seconds_between):
        for _ in range(count):
            self.on_signal(signal.SIGTERM, None)
            self.clock.forward(seconds_between)


@pytest.fixture
def request_():
    return Request()


def test_first_signal_is_not_urgent(request_):
    assert (request_.is_made, request_.expects_copies) == (False, False)
    request_.on_signal(signal.SIGTERM, None)
    assert (request_.is_made, request_.is_urgent, request_.expects_copies) == (True, False, True)


def test_second_signal_is_urgent_unless_it_is_a_copy(request_):
    request_.signals(3, COPIES_SECONDS / 2)  # measured from the first signal: a copy does not extend the period
    assert (request_.is_urgent, request_.expects_copies) == (False, False)
    request_.on_signal(signal.SIGINT, None)
    assert request_.is_urgent


def test_only_the_supervisor_makes_the_request_of_its_worker_urgent(request_):
    request_.has_supervisor = True
    request_.signals(3, 60)
    assert (request_.is_made, request_.is_urgent) == (True, False)
    request_.make_urgent()
    assert request_.is_urgent


def test_signal_after_a_stop_by_the_program_counts_as_the_first(request_):
    request_.make()
    request_.signals(1, 60)
    assert (request_.is_made, request_.is_urgent) == (True, False)
