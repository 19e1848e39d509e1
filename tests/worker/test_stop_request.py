"""Which signals ask a second time."""

import signal

import pytest

from django_jobchains.worker.stop_request import COPIES_SECONDS, StopRequest


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_signal_is_not_urgent(clock: Clock) -> None:
    request = StopRequest(clock)
    assert (request.is_made, request.expects_copies) == (False, False)
    request.on_signal(signal.SIGTERM, None)
    assert (request.is_made, request.is_urgent, request.expects_copies) == (True, False, True)


def test_signals_are_copies_for_a_moment_and_then_a_second_one_is_urgent(clock: Clock) -> None:
    request = StopRequest(clock)
    for _ in range(3):
        request.on_signal(signal.SIGTERM, None)
        clock.now += COPIES_SECONDS / 2  # measured from the first: a copy does not make the moment longer
    assert (request.is_urgent, request.expects_copies) == (False, False)
    request.on_signal(signal.SIGINT, None)
    assert request.is_urgent


def test_a_supervisor_alone_makes_the_request_of_its_worker_urgent(clock: Clock) -> None:
    request = StopRequest(clock)
    request.has_supervisor = True
    for _ in range(3):
        request.on_signal(signal.SIGTERM, None)
        clock.now += 60
    assert (request.is_made, request.is_urgent) == (True, False)
    request.make_urgent()
    assert request.is_urgent


def test_a_signal_after_a_stop_by_the_program_is_the_first_signal(clock: Clock) -> None:
    request = StopRequest(clock)
    request.make()
    clock.now += 60
    request.on_signal(signal.SIGTERM, None)
    assert (request.is_made, request.is_urgent) == (True, False)
