import pytest

from tests.support.attempts import WITHOUT_WAKE_UPS


@pytest.fixture(autouse=True)
def _no_wake_ups(settings):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
