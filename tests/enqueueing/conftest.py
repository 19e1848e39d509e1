from collections.abc import Iterator

import pytest

from tests.attempts.conftest import second_alias
from tests.enqueueing import recording

__all__ = ("second_alias",)


@pytest.fixture(autouse=True)
def sent() -> Iterator[list[tuple[str, set[str]]]]:
    """The wake-ups of the test."""
    recording.sent.clear()
    with recording.notifier("RecordingNotifier"):
        yield recording.sent
    recording.sent.clear()
