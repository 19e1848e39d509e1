"""When a worker process is started again, and when the supervisor gives up."""

import signal

import pytest

from django_jobchains.worker.restarts import Restarts, failed_to_start


def test_the_wait_grows_while_a_process_ends_early_and_begins_anew_after_it_lived_a_while() -> None:
    restarts = Restarts()
    waits = [restarts.ended(1, lived_seconds=2, failed_to_start=False) for _ in range(6)]
    assert waits == [0.5, 1, 2, 4, 5, 5]
    assert restarts.ended(2, lived_seconds=2, failed_to_start=False) == 0.5
    assert restarts.ended(1, lived_seconds=20, failed_to_start=False) == 0
    assert restarts.ended(1, lived_seconds=2, failed_to_start=False) == 0.5


def test_only_when_every_process_fails_to_start_again_and_again_it_has_no_sense() -> None:
    restarts = Restarts()
    for number in (1, 1, 1, 1, 1, 2, 2, 2, 2):
        restarts.ended(number, lived_seconds=1, failed_to_start=True)
    assert not restarts.has_none_that_starts({1, 2})
    restarts.ended(2, lived_seconds=1, failed_to_start=False)
    for _ in range(4):
        restarts.ended(2, lived_seconds=1, failed_to_start=True)
    assert not restarts.has_none_that_starts({1, 2})
    restarts.ended(2, lived_seconds=1, failed_to_start=True)
    assert restarts.has_none_that_starts({1, 2})
    assert not restarts.has_none_that_starts({1, 2, 3})


@pytest.mark.parametrize(
    ("code", "has_begun", "failed"),
    [
        (1, False, True),
        (-signal.SIGSEGV, False, True),
        (-signal.SIGKILL, False, False),
        (-signal.SIGTERM, False, False),
        (0, False, False),
        (1, True, False),
    ],
)
def test_what_worked_or_was_killed_from_outside_has_not_failed_to_start(
    code: int, has_begun: bool, failed: bool
) -> None:
    assert failed_to_start(code, has_begun=has_begun) is failed
