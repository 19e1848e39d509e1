"""Helpers for tests of attempts: committed rows, and calls on other connections."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from django.db import connection

Work = Callable[..., None]

#: Settings for workers that run due jobs and end. They need no listener, which takes time to close.
WITHOUT_WAKE_UPS: dict[str, Any] = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}

#: Marks a test that commits. All tables are emptied after it.
committed = pytest.mark.django_db(transaction=True)


def on_own_connection(function: Callable[..., object], *args: Any) -> None:
    """Make a call on a separate thread and connection, and raise its error."""
    errors: list[BaseException] = []

    def target() -> None:
        try:
            function(*args)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    thread = Thread(target=target)
    thread.start()
    thread.join(30)
    if errors:
        raise errors[0]
