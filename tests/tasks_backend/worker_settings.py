"""Settings of worker processes that run the tasks of the tests."""

from tests.support.worker_settings import *  # noqa: F403
from tests.tasks_backend.backends import BACKENDS

TASKS = BACKENDS
