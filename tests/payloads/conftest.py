import pytest

from tests.attempts.conftest import processors
from tests.support.attempts import WITHOUT_WAKE_UPS

__all__ = ("processors",)


@pytest.fixture(autouse=True)
def _no_wake_ups(settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
