"""The settings of the browser tests, with a second database for the shop and its jobs, and an admin site for each."""

from tests.browser.settings import *  # noqa: F403
from tests.browser.settings import DATABASES

DATABASES = {**DATABASES, "shard": {**DATABASES["default"], "NAME": f"{DATABASES['default']['NAME']}_shard"}}
DATABASE_ROUTERS = ["tests.browser.shards.ShardRouter"]
ROOT_URLCONF = "tests.browser.shards"
