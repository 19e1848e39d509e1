"""When the supervisor restarts a worker process, and when it gives up."""

import signal

import pytest

from django_jobchains.worker.supervisor.child import Restarts, failed_to_start


def test_restart_delay_grows_until_a_process_has_run_for_a_while() -> None:
    restarts = Restarts()
    waits = [restarts.ended(1, lived_seconds=2, failed_to_start=False) for _ in range(6)]
    assert waits == [0.5, 1, 2, 4, 5, 5]
    assert restarts.ended(2, lived_seconds=2, failed_to_start=False) == 0.5
    assert restarts.ended(1, lived_seconds=20, failed_to_start=False) == 0
    assert restarts.ended(1, lived_seconds=2, failed_to_start=False) == 0.5


def test_supervisor_gives_up_if_every_process_repeatedly_fails_to_start() -> None:
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
def test_failed_starts_exclude_kills_and_later_errors(code: int, has_begun: bool, failed: bool) -> None:
    assert failed_to_start(code, has_begun=has_begun) is failed
