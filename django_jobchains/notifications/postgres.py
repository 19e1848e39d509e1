"""LISTEN/NOTIFY. A NOTIFY never travels in the user's transaction: its commit would take a database-wide lock."""

import json
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import uuid4

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobchains.network import NETWORK_OPTIONS
from django_jobchains.notifications.base import EVERY, Hint, Listener, Notifier, logger
from django_jobchains.notifications.listening import ListeningThread
from django_jobchains.own_statements import own

CHANNEL = "django_jobchains"
#: More subjects than this in one transaction are sent as one "look for yourself".
MOST_HINTS = 50
#: A listener that heard nothing for so long asks the server whether it still listens.
PROBE_SECONDS = 5.0
#: Between looks at whether the listener is to close.
TICK_SECONDS = 0.2
#: What a listener says of itself must reach it in this time, by the way that every hint takes.
PROOF_SECONDS = 5.0
#: Before a listener that is deaf tries again: a pooler will not go away by itself.
DEAF_SECONDS = 60.0

_CODES = {"job_scheduled": "j", "chain_finished": "c", "ownership_lost": "o"}
_KINDS: dict[str, Any] = {code: kind for kind, code in _CODES.items()}
#: No hint: nobody but the listener that said it takes notice.
_PROOF = "p"
_DEAF = (
    "what is notified does not arrive at database {!r}, though LISTEN works. Is there a transaction pooler in between? "
    "Name an alias that reaches the same database without it, JOBCHAINS['NOTIFIER'] = {{'OPTIONS': {{'listen_using': "
    "'direct'}}}}, or poll by choice, with the BACKEND 'django_jobchains.notifications.NullNotifier'"
)


class Deaf(Exception):
    """Subscribed, but hints do not arrive."""


class PostgresNotifier(Notifier):
    """Sends on the connection that just committed; listens on one connection per worker process.

    ``listen_using``: the alias to listen with, when the job tables are reached through a transaction pooler. It is the
    same database without the pooler.
    """

    def __init__(self, using: str, listen_using: str | None = None) -> None:
        super().__init__(using)
        self.listen_using = listen_using or using
        if self.listen_using not in connections.settings:
            known = ", ".join(connections.settings)
            raise ImproperlyConfigured(f"listen_using: there is no database {listen_using!r}. Known: {known}.")
        #: Whether a hint was seen to arrive; it need not be shown again at each reconnect.
        self.is_proven = False

    @own
    def send(self, hints: Collection[Hint]) -> None:
        if len(hints) > MOST_HINTS:
            hints = {Hint(hint.kind, EVERY) for hint in hints}
        self.notify([f"{_CODES[hint.kind]}:{hint.subject}" for hint in hints])

    def notify(self, payloads: Sequence[str]) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                "SELECT pg_notify(%s, value) FROM json_array_elements_text(%s::json)", [CHANNEL, json.dumps(payloads)]
            )

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return PostgresListener(self, on_hint)


class PostgresListener(ListeningThread):
    def __init__(self, notifier: PostgresNotifier, on_hint: Callable[[Hint], None]) -> None:
        self._notifier = notifier
        super().__init__(f"jobchains-listener-{notifier.using}", on_hint)

    def watch(self) -> None:
        with psycopg.connect(**_parameters(self._notifier.listen_using), autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            if not self._notifier.is_proven:
                self._prove(connection)
            self.connected()
            heard_at = time.monotonic()
            while not self.closing.is_set():
                for notification in list(connection.notifies(timeout=TICK_SECONDS, stop_after=1)):
                    heard_at = time.monotonic()
                    self._pass_on(notification.payload)
                if time.monotonic() - heard_at >= PROBE_SECONDS:
                    _probe(connection)
                    heard_at = time.monotonic()

    def _prove(self, connection: "psycopg.Connection[Any]") -> None:
        """Says something where all others do, and waits until it arrives here. What else arrives may be dropped: after
        it everybody looks."""
        payload = f"{_PROOF}:{uuid4()}"
        try:
            self._say(payload)
        except Exception as error:  # no connection is left, perhaps: no reason not to listen
            logger.info("Whether wake-ups arrive is seen at the next connection, now it could not be: %s", error)
            return
        until = time.monotonic() + PROOF_SECONDS
        while not self._notifier.is_proven and not self.closing.is_set():
            if time.monotonic() >= until:
                raise Deaf(_DEAF.format(self._notifier.listen_using))
            heard = [notification.payload for notification in connection.notifies(timeout=TICK_SECONDS, stop_after=1)]
            self._notifier.is_proven = payload in heard

    def _say(self, payload: str) -> None:
        """On a connection of this thread's own: a session is always told what it says itself, also by a pooler."""
        try:
            self._notifier.notify([payload])
        finally:
            connections[self._notifier.using].close()

    def seconds_after(self, error: BaseException) -> float | None:
        return DEAF_SECONDS if isinstance(error, Deaf) else None

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
    return {**NETWORK_OPTIONS, "prepare_threshold": None, **parameters}
