import pytest

#: The environment of workers that know the jobs of these tests.
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.isolation.worker_settings"}


@pytest.fixture
def start_isolated(start_process):
    """Starts workers that know the jobs of these tests, and waits until they are ready."""

    def start(*arguments, **options):
        return start_process(*arguments, **{**SETTINGS, **options}).until_ready()

    return start
