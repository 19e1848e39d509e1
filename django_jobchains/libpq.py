"""Statements by libpq's own calls, one wait each: docs/decisions/0017-no-pipelines.md."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg import pq


def execute(raw: "psycopg.Connection[Any]", sql: str) -> "pq.abc.PGresult":
    """Statements without parameters, in one round trip; the result of the last. The connection speaks UTF-8."""
    return checked(raw, raw.pgconn.exec_(sql.encode()))


def checked(raw: "psycopg.Connection[Any]", result: "pq.abc.PGresult") -> "pq.abc.PGresult":
    """The result, or the error that it is."""
    import psycopg
    from psycopg import pq
    from psycopg.errors import error_from_result

    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return result
    if not result.error_field(pq.DiagnosticField.SQLSTATE):  # not the server's: the connection was lost
        # The result says only that; the connection also what the server had said before, that nobody had read.
        message = raw.pgconn.error_message or result.error_message
        raise psycopg.OperationalError(message.decode(errors="replace").strip())
    raise error_from_result(result)
