"""What libpq offers beyond Django: options that detect dead networks, and statements that wait once.

Without the network options, a statement whose answer was lost waits for the operating system: two hours by default, and
the server's ``statement_timeout`` does not help. libpq ignores them on a Unix socket.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    import psycopg
    from psycopg import pq

#: Detect a silent network in 5 to 15 seconds, before a lease of a minute runs out.
NETWORK_OPTIONS: dict[str, int] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
}
#: The settings of a session with which the server detects the same, by the names of the options.
SERVER_SETTINGS = {
    "keepalives_idle": "tcp_keepalives_idle",
    "keepalives_interval": "tcp_keepalives_interval",
    "keepalives_count": "tcp_keepalives_count",
    "tcp_user_timeout": "tcp_user_timeout",
}


def missing_network_options(alias: str) -> dict[str, int]:
    """Return the network options that ``DATABASES`` does not set; none for a database without a network in between."""
    settings = connections.settings[alias]
    if not _is_over_network(connections[alias]):
        return {}
    return {name: value for name, value in NETWORK_OPTIONS.items() if name not in settings["OPTIONS"]}


def add_network_options() -> None:
    """Add the missing network options to every connection that this process opens from now on, at both of its ends."""
    for alias in connections.settings:
        if missing := missing_network_options(alias):
            options: dict[str, Any] = {**missing, **connections.settings[alias]["OPTIONS"]}
            connections.settings[alias]["OPTIONS"] = options
    connection_created.connect(_set_server_options, dispatch_uid="jobchains_network_options")


def _set_server_options(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Let the server end the transaction of this process soon after its host has vanished.

    Otherwise, its locks last for two hours, and no other worker can take over the jobs. It is a statement, because
    poolers reject such settings at the start of a connection. See docs/decisions/0121-vanished-hosts.md.
    """
    if not _is_over_network(connection):
        return
    import psycopg

    options = {**NETWORK_OPTIONS, **connection.settings_dict["OPTIONS"]}
    given = {name: options[option] for option, name in SERVER_SETTINGS.items() if options[option] is not None}
    sql = "; ".join(f"SET {name} = {int(value)}" for name, value in given.items())
    with suppress(psycopg.DatabaseError):  # other servers that speak the protocol may not have these settings
        execute(connection.connection, sql)


def _is_over_network(connection: BaseDatabaseWrapper) -> bool:
    host = connection.settings_dict["HOST"]
    return connection.vendor == "postgresql" and bool(host) and not host.startswith("/")


def execute(raw: "psycopg.Connection[Any]", sql: str) -> "pq.abc.PGresult":
    """Execute statements without parameters in one round trip, and return the last result.

    The connection's encoding must be UTF-8. See docs/decisions/0017-no-pipelines.md.
    """
    return checked(raw, raw.pgconn.exec_(sql.encode()))


def awaited(raw: "psycopg.Connection[Any]") -> "pq.abc.PGresult":
    """Wait for the result of what was sent, as psycopg waits: signals are handled, and other greenlets run.

    In autocommit, the error of a failed commit follows the result.
    """
    from psycopg import generators

    results = [checked(raw, result) for result in raw.wait(generators.execute(raw.pgconn))]
    return results[0]


def checked(raw: "psycopg.Connection[Any]", result: "pq.abc.PGresult") -> "pq.abc.PGresult":
    """Return the result, or raise the error that it contains."""
    import psycopg
    from psycopg import pq
    from psycopg.errors import error_from_result

    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return result
    if not result.error_field(pq.DiagnosticField.SQLSTATE):  # not from the server: the connection was lost
        # The connection has more than the result, including earlier unread messages of the server.
        message = raw.pgconn.error_message or result.error_message
        raise psycopg.OperationalError(message.decode(errors="replace").strip())
    raise error_from_result(result)
