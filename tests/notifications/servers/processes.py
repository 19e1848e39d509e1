"""Short-lived processes that use a NATS notifier."""

import json
import os
import subprocess
import sys

SETUP = """
import os, sys, threading
import django
django.setup()
from django_jobchains.notifications import get_notifier, job_scheduled
notifier = get_notifier("default")
"""


def jobchains(servers, **options):
    """``settings.JOBCHAINS`` of a project that uses NATS."""
    backend = "django_jobchains.notifications.nats.NatsNotifier"
    return {"NOTIFIER": {"BACKEND": backend, "OPTIONS": {"servers": servers, **options}}}


def run(servers, script):
    """Run a script after SETUP in a process that turns warnings into errors, and return its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SETUP + script],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.support.worker_settings",
            "JOBCHAINS_TEST_OPTIONS": json.dumps(jobchains(servers)),
        },
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
