import pytest

from tests.attempts.conftest import second_alias
from tests.support import notifiers as recording

__all__ = ("second_alias",)


@pytest.fixture(autouse=True)
def sent():
    """The wake-ups that the test sends."""
    recording.sent.clear()
    with recording.notifier("RecordingNotifier"):
        yield recording.sent
    recording.sent.clear()
