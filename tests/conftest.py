import signal

import pytest
from django.db import connection

#: A suite of its own, with a process that has no Django in it: make browser.
collect_ignore = ["browser"]


def pytest_configure() -> None:
    """A process that a shell started in the background ignores Ctrl-C, and so would those that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if connection.vendor == "postgresql":
        return
    for item in items:
        if item.get_closest_marker("postgresql"):
            item.add_marker(pytest.mark.skip(reason="needs PostgreSQL"))
