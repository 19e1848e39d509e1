"""Helpers for tests of attempts: committed rows, and calls on other connections."""

from tests.support.connections import committing, elsewhere

#: Settings for workers that run due jobs and end. They need no listener, which takes time to close.
WITHOUT_WAKE_UPS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}

committed = committing


def on_own_connection(function, *args):
    """Make a call on a separate thread and connection, and raise its error."""
    elsewhere(lambda store: function(*args))
