"""LISTEN/NOTIFY. A NOTIFY never travels in the user's transaction: its commit would take a database-wide lock."""

import json
import time
from collections.abc import Callable, Collection
from typing import Any

import psycopg
from django.db import connections

from django_jobchains.notifications.base import EVERY, Hint, Listener, Notifier
from django_jobchains.notifications.listening import ListeningThread

CHANNEL = "django_jobchains"
#: More subjects than this in one transaction are sent as one "look for yourself".
MOST_HINTS = 50
#: A listener that heard nothing for so long asks the server whether it still listens.
PROBE_SECONDS = 5.0
#: Between looks at whether the listener is to close.
TICK_SECONDS = 0.2
#: A dead network is noticed by these, not by the operating system's two hours.
NETWORK_OPTIONS = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
}

_CODES = {"job_scheduled": "j", "chain_finished": "c", "ownership_lost": "o"}
_KINDS: dict[str, Any] = {code: kind for kind, code in _CODES.items()}


class PostgresNotifier(Notifier):
    """Sends on the connection that just committed; listens on one connection per worker process."""

    def send(self, hints: Collection[Hint]) -> None:
        if len(hints) > MOST_HINTS:
            hints = {Hint(hint.kind, EVERY) for hint in hints}
        payloads = [f"{_CODES[hint.kind]}:{hint.subject}" for hint in hints]
        connection = connections[self.using]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_notify(%s, value) FROM json_array_elements_text(%s::json)", [CHANNEL, json.dumps(payloads)]
            )

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return PostgresListener(self.using, on_hint)


class PostgresListener(ListeningThread):
    def __init__(self, using: str, on_hint: Callable[[Hint], None]) -> None:
        self._using = using
        super().__init__(f"jobchains-listener-{using}", on_hint)

    def watch(self) -> None:
        with psycopg.connect(**_parameters(self._using), autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self.connected()
            heard_at = time.monotonic()
            while not self.closing.is_set():
                for notification in list(connection.notifies(timeout=TICK_SECONDS, stop_after=1)):
                    heard_at = time.monotonic()
                    self._pass_on(notification.payload)
                if time.monotonic() - heard_at >= PROBE_SECONDS:
                    _probe(connection)
                    heard_at = time.monotonic()

    def _pass_on(self, payload: str) -> None:
        """Anybody with a database login may write to the channel: what is not a hint of ours is dropped."""
        code, _, subject = payload.partition(":")
        if code in _KINDS and subject:
            self.on_hint(Hint(_KINDS[code], subject))


def _probe(connection: "psycopg.Connection[Any]") -> None:
    row = connection.execute("SELECT %s IN (SELECT pg_listening_channels())", [CHANNEL]).fetchone()
    if not row or not row[0]:
        raise psycopg.OperationalError("the session no longer listens (is there a transaction pooler in between?)")


def _parameters(using: str) -> dict[str, Any]:
    """Django's own connection parameters without what is Django's, and with the network options it leaves open."""
    parameters = connections[using].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "server_side_binding", "pool", "isolation_level"):
        parameters.pop(name, None)
    return {**NETWORK_OPTIONS, **parameters}
