"""What the tests of attempts share: real rows, and other connections."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from django.db import connection

Work = Callable[..., None]

#: Settings for workers that run what is due and end: a listener would only take its time to close.
WITHOUT_WAKE_UPS: dict[str, Any] = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}

#: Real commits. Named apps, because clearing their tables takes a tenth of the time that clearing all of them does.
committed = pytest.mark.django_db(transaction=True, available_apps=["django_jobchains", "tests.shop"])


def elsewhere(function: Callable[..., object], *args: Any) -> None:
    """Calls a function on a thread with a connection of its own, and waits for it."""
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
