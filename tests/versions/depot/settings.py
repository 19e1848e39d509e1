"""Settings of the depot. The database and the folder of the installed package come from the environment."""

import json
import os
from pathlib import Path

import django_jobchains

# Otherwise the test would compare this repository's package with itself.
assert Path(django_jobchains.__file__).is_relative_to(os.environ["DEPOT_PACKAGE"]), django_jobchains.__file__

SECRET_KEY = "not-a-secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_jobchains", "depot"]
DATABASES = {"default": json.loads(os.environ["DEPOT_DATABASE"])}
JOBCHAINS = {"REAP_SECONDS": 0.5, "POLL_SECONDS": 1, "LEASE_SECONDS": 10}
