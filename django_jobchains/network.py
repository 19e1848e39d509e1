"""What lets a connection to PostgreSQL notice that the network is gone.

Without these a statement whose answer was lost waits for the operating system: two hours by default, and the server's
``statement_timeout`` does not help. libpq ignores them on a Unix socket.
"""

from typing import Any

from django.db import connections

#: A silent network is noticed in 5 to 15 seconds, before a lease of a minute runs out.
NETWORK_OPTIONS: dict[str, int] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
}


def missing_options(alias: str) -> dict[str, int]:
    """The options that ``DATABASES`` leaves open, with what they should be; none where no network is in between."""
    settings = connections.settings[alias]
    is_over_network = settings["HOST"] and not settings["HOST"].startswith("/")
    if connections[alias].vendor != "postgresql" or not is_over_network:
        return {}
    return {name: value for name, value in NETWORK_OPTIONS.items() if name not in settings["OPTIONS"]}


def notice_dead_networks() -> None:
    """Completes the options of every connection that this process opens from now on; what is set stays as it is."""
    for alias in connections.settings:
        if missing := missing_options(alias):
            options: dict[str, Any] = {**missing, **connections.settings[alias]["OPTIONS"]}
            connections.settings[alias]["OPTIONS"] = options
