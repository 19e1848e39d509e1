"""LISTEN/NOTIFY. A NOTIFY never travels in the user's transaction: its commit would take a database-wide lock."""

import re
import time
from collections.abc import Collection
from typing import Any
from uuid import uuid4

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from psycopg import pq

from django_jobchains import libpq
from django_jobchains.network import NETWORK_OPTIONS
from django_jobchains.notifications.base import Notifier, logger
from django_jobchains.notifications.hints import EVERY, Hint, HintKind, decode, encode
from django_jobchains.notifications.listening import ListeningThread
from django_jobchains.notifications.subscribing import Listener, Subscribers
from django_jobchains.texts import log_text

#: Each kind has its own: a worker hears of no chain that ended, whoever waits for one of no job that is due.
CHANNELS: dict[HintKind, str] = {
    "job_scheduled": "django_jobchains_scheduled",
    "chain_finished": "django_jobchains_finished",
    "ownership_lost": "django_jobchains_lost",
}
_PREFIX = "django_jobchains"
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
    same database without the pooler. ``prefix``: of the channels; projects whose job tables are in one database, in
    different schemas, have one each.
    """

    def __init__(self, using: str, listen_using: str | None = None, prefix: str = _PREFIX) -> None:
        super().__init__(using)
        if not re.fullmatch("[a-z_][a-z0-9_]{0,39}", prefix, re.ASCII):
            raise ImproperlyConfigured(
                f"prefix: {prefix!r} must have 1 to 40 characters: lower-case letters, digits and '_', no digit first."
            )
        self.channels = {kind: f"{prefix}{channel.removeprefix(_PREFIX)}" for kind, channel in CHANNELS.items()}
        self.listen_using = listen_using or using
        if self.listen_using not in connections.settings:
            known = ", ".join(connections.settings)
            raise ImproperlyConfigured(f"listen_using: there is no database {listen_using!r}. Known: {known}.")
        #: Whether a hint was seen to arrive; it need not be shown again at each reconnect.
        self.is_proven = False

    def send(self, hints: Collection[Hint]) -> None:
        if len(hints) > MOST_HINTS:
            hints = {Hint(hint.kind, EVERY) for hint in hints}
        self.notify([(self.channels[hint.kind], encode(hint)) for hint in hints])

    def notify(self, texts: Collection[tuple[str, str]]) -> None:
        """Sends texts, each on a channel, in one round trip: every enqueue waits for it, so without a cursor."""
        connection = connections[self.using]
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        escape = pq.Escaping(raw.pgconn).escape_literal
        statements = [f"NOTIFY {channel}, {bytes(escape(text.encode())).decode()}" for channel, text in texts]
        with connection.wrap_database_errors:
            libpq.execute(raw, "; ".join(statements))

    def connect(self, subscribers: Subscribers) -> Listener:
        return PostgresListener(self, subscribers)


class PostgresListener(ListeningThread):
    kinds = frozenset()

    def __init__(self, notifier: PostgresNotifier, subscribers: Subscribers) -> None:
        self._notifier = notifier
        self._kinds = {channel: kind for kind, channel in notifier.channels.items()}
        super().__init__(f"jobchains-listener-{notifier.using}", subscribers)

    def watch(self) -> None:
        self.kinds = frozenset()
        with psycopg.connect(**_parameters(self._notifier.listen_using), autocommit=True) as connection:
            self._subscribe(connection)
            if not self._notifier.is_proven:
                self._prove(connection)
            self.connected()
            heard_at = time.monotonic()
            while not self.closing.is_set():
                for notification in list(connection.notifies(timeout=TICK_SECONDS, stop_after=1)):
                    heard_at = time.monotonic()
                    self._pass_on(notification)
                self.subscribers.look(self._subscribe(connection))
                if time.monotonic() - heard_at >= PROBE_SECONDS:
                    _probe(connection, {self._notifier.channels[kind] for kind in self.kinds})
                    heard_at = time.monotonic()

    def _subscribe(self, connection: "psycopg.Connection[Any]") -> frozenset[HintKind]:
        """Listens to what is wanted now; returns what is new of it."""
        wanted, known = self.subscribers.kinds, self.kinds
        for kind in sorted(wanted ^ known):
            connection.execute(f"{'LISTEN' if kind in wanted else 'UNLISTEN'} {self._notifier.channels[kind]}")
        self.kinds = wanted
        return wanted - known

    def _prove(self, connection: "psycopg.Connection[Any]") -> None:
        """Says something where all others do, and waits until it arrives here; nobody else takes it for a hint. What
        else arrives may be dropped: after it everybody looks."""
        proof = str(uuid4())
        try:
            self._say([(self._notifier.channels[kind], proof) for kind in self.kinds])
        except Exception as error:  # no connection is left, perhaps: no reason not to listen
            text = "Whether wake-ups arrive is seen at the next connection, now it could not be: %s"
            logger.info(text, log_text(error))
            return
        until = time.monotonic() + PROOF_SECONDS
        while not self._notifier.is_proven and not self.closing.is_set():
            if time.monotonic() >= until:
                raise Deaf(_DEAF.format(self._notifier.listen_using))
            heard = [notification.payload for notification in connection.notifies(timeout=TICK_SECONDS, stop_after=1)]
            self._notifier.is_proven = proof in heard

    def _say(self, texts: Collection[tuple[str, str]]) -> None:
        """On a connection of this thread's own: a session is always told what it says itself, also by a pooler."""
        try:
            self._notifier.notify(texts)
        finally:
            connections[self._notifier.using].close()

    def seconds_after(self, error: BaseException) -> float | None:
        return DEAF_SECONDS if isinstance(error, Deaf) else None

    def _pass_on(self, notification: psycopg.Notify) -> None:
        """Anybody with a database login may write to a channel: what is no hint of ours is dropped."""
        if hint := decode(self._kinds[notification.channel], notification.payload):
            self.subscribers(hint)


def _probe(connection: "psycopg.Connection[Any]", channels: set[str]) -> None:
    rows = connection.execute("SELECT pg_listening_channels()").fetchall()
    if channels - {channel for (channel,) in rows}:
        raise psycopg.OperationalError("the session no longer listens (is there a transaction pooler in between?)")


def _parameters(using: str) -> dict[str, Any]:
    """Django's own connection parameters without what is Django's, and with the network options it leaves open."""
    parameters = connections[using].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "server_side_binding", "pool", "isolation_level"):
        parameters.pop(name, None)
    return {**NETWORK_OPTIONS, "prepare_threshold": None, **parameters}
