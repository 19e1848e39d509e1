from collections.abc import Callable
from functools import partial

import pytest
from django.core.management import call_command

Migrate = Callable[..., None]


@pytest.fixture
def migrate(transactional_db):
    """Run ``migrate`` for this app, which is fully migrated again after the test."""
    run = partial(call_command, "migrate", "django_jobchains", verbosity=0)
    yield run
    run()
