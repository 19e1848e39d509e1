"""Helpers for tests of attempts: committed rows, and calls on other connections."""

import pytest

from tests.support.connections import committing, elsewhere

#: Settings for workers that run due jobs and end. They need no listener, which takes time to close.
WITHOUT_WAKE_UPS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}

committed = committing


@pytest.fixture(autouse=True)
def no_wake_ups(settings):
    """Imported by the ``conftest`` of a folder, it applies to all tests of the folder."""
    settings.JOBCHAINS = WITHOUT_WAKE_UPS


def on_own_connection(function, *args):
    """Make a call on a separate thread and connection, and raise its error."""
    elsewhere(lambda store: function(*args))
