"""Settings of worker processes that use the Redis notifier."""

import json
import os

from tests.support.worker_settings import *  # noqa: F403

CACHES = json.loads(os.environ["JOBCHAINS_TEST_CACHES"])
