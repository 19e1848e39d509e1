"""Settings of worker processes whose wake-ups come by Redis."""

import json
import os

from tests.chaos.settings import *  # noqa: F403

CACHES = json.loads(os.environ["JOBCHAINS_TEST_CACHES"])
