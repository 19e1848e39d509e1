"""Settings of the processes that tests start: the test's own database, and ``JOBCHAINS`` from the environment."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos.app"]
JOBCHAINS = json.loads(os.environ.get("JOBCHAINS_TEST_OPTIONS", "{}"))
