"""Settings for Django's own tests. Each of them sets ``TASKS`` itself."""

from tests.settings import *  # noqa: F403

#: The second one empties the tables between tests, which takes less time than Django's way.
INSTALLED_APPS = ["django_jobchains", "tests.shop"]
ROOT_URLCONF = __name__
urlpatterns: list[object] = []
TASKS = {"default": {"BACKEND": "django_jobchains.tasks_backend.JobchainsBackend"}}
