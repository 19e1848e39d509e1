from typing import Any

import pytest

from tests.support.attempts import WITHOUT_WAKE_UPS


@pytest.fixture(autouse=True)
def _no_wake_ups(settings: Any) -> None:
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
