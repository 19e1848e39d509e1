"""Settings of the contract's tests, and of the worker processes that they start and kill."""

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["django_jobchains", "tests.shop", "tests.due_work"]
ROOT_URLCONF = __name__
urlpatterns: list[object] = []
BACKEND = "django_jobchains.tasks_backend.JobchainsBackend"
TASKS = {
    "default": {"BACKEND": BACKEND},
    "retrying": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 3, "backoff": 1}},
}
#: Short, so that the tests need not wait long for the task of a process that died.
JOBCHAINS = {"LEASE_SECONDS": 1, "REAP_SECONDS": 0.1, "BACKOFF_INITIAL_SECONDS": 0.01, "POLL_SECONDS": 0.2}
