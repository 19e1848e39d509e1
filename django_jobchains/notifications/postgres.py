"""Wake-ups by LISTEN/NOTIFY. A NOTIFY is never part of a user's transaction: its commit would take a global lock."""

import re
import time
from collections.abc import Collection
from typing import Any
from uuid import uuid4

import psycopg
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from psycopg import pq

from django_jobchains.db import libpq
from django_jobchains.notifications.base import Listener, ListeningThread, Notifier, Subscribers, logger
from django_jobchains.notifications.hints import Hint, HintKind, decode, encode, few
from django_jobchains.text.errors import log_text

#: One channel per kind, so that listeners receive only the kinds they want.
CHANNELS: dict[HintKind, str] = {
    "job_scheduled": "django_jobchains_scheduled",
    "chain_finished": "django_jobchains_finished",
    "ownership_lost": "django_jobchains_lost",
}
_PREFIX = "django_jobchains"
#: A listener that received nothing for this time asks the server whether it still listens.
PROBE_SECONDS = 5.0
#: How often a listener checks whether it is to close.
TICK_SECONDS = 0.2
#: How long a listener waits for the message that it sends to itself.
SELF_TEST_SECONDS = 5.0
#: The pause after a failed self-test: a pooler will not go away soon.
FAILED_SELF_TEST_SECONDS = 60.0

_NOT_RECEIVED = (
    "notifications on database {!r} do not arrive, although LISTEN works. Is there a transaction pooler in "
    "between? Name an alias that reaches the same database without it, JOBCHAINS['NOTIFIER'] = {{'OPTIONS': "
    "{{'listen_using': 'direct'}}}}, or poll by choice, with the BACKEND 'django_jobchains.notifications.NullNotifier'"
)


class HintsNotReceived(Exception):
    """The listener is subscribed, but hints do not arrive."""


class PostgresNotifier(Notifier):
    """Sends on the connection that just committed, and listens on one connection per process.

    ``listen_using``: the alias to listen on, if the job tables are reached through a transaction pooler. It is the same
    database without the pooler. ``prefix``: the prefix of the channels, different for each project whose job tables are
    in another schema of the same database.
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
        #: Whether a listener has received its own message once. Later connections need no self-test.
        self.is_proven = False

    def send(self, hints: Collection[Hint]) -> None:
        self.notify([(self.channels[hint.kind], encode(hint)) for hint in few(hints)])

    def notify(self, messages: Collection[tuple[str, str]]) -> None:
        """Send messages, pairs of a channel and a text, in one round trip.

        Every enqueue waits for it, so it uses no cursor.
        """
        connection = connections[self.using]
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        escape = pq.Escaping(raw.pgconn).escape_literal
        statements = [f"NOTIFY {channel}, {bytes(escape(text.encode())).decode()}" for channel, text in messages]
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
        with psycopg.connect(**_connection_parameters(self._notifier.listen_using), autocommit=True) as connection:
            self._subscribe(connection)
            if not self._notifier.is_proven:
                self._test(connection)
            self.connected()
            received_at = time.monotonic()
            while not self.closing.is_set():
                for notification in list(connection.notifies(timeout=TICK_SECONDS, stop_after=1)):
                    received_at = time.monotonic()
                    self._pass_on(notification)
                self.subscribers.resync(self._subscribe(connection))
                if time.monotonic() - received_at >= PROBE_SECONDS:
                    _probe(connection, {self._notifier.channels[kind] for kind in self.kinds})
                    received_at = time.monotonic()

    def retry_seconds(self, error: BaseException) -> float | None:
        return FAILED_SELF_TEST_SECONDS if isinstance(error, HintsNotReceived) else None

    def _subscribe(self, connection: "psycopg.Connection[Any]") -> frozenset[HintKind]:
        """Listen to the kinds that are wanted now, and return the new ones."""
        wanted, before = self.subscribers.kinds, self.kinds
        for kind in sorted(wanted ^ before):
            connection.execute(f"{'LISTEN' if kind in wanted else 'UNLISTEN'} {self._notifier.channels[kind]}")
        self.kinds = wanted
        return wanted - before

    def _test(self, connection: "psycopg.Connection[Any]") -> None:
        """Send a message to all channels and wait until it arrives. Other listeners do not take it for a hint.

        Hints that arrive in the meantime may be dropped, because all subscribers query afterwards.
        """
        message = str(uuid4())
        try:
            self._send([(self._notifier.channels[kind], message) for kind in self.kinds])
        except Exception as error:  # without a free connection it cannot test itself, but it can still listen
            text = "Could not test whether wake-ups arrive; the test is repeated with the next connection: %s"
            logger.info(text, log_text(error))
            return
        until = time.monotonic() + SELF_TEST_SECONDS
        while not self._notifier.is_proven and not self.closing.is_set():
            if time.monotonic() >= until:
                raise HintsNotReceived(_NOT_RECEIVED.format(self._notifier.listen_using))
            received = [item.payload for item in connection.notifies(timeout=TICK_SECONDS, stop_after=1)]
            self._notifier.is_proven = message in received

    def _send(self, messages: Collection[tuple[str, str]]) -> None:
        """Send on another connection: a session always receives its own messages, even through a pooler."""
        try:
            self._notifier.notify(messages)
        finally:
            connections[self._notifier.using].close()

    def _pass_on(self, notification: psycopg.Notify) -> None:
        """Pass on a hint. Drop anything else, because anyone with a database login may write to a channel."""
        if hint := decode(self._kinds[notification.channel], notification.payload):
            self.subscribers(hint)


def _probe(connection: "psycopg.Connection[Any]", channels: set[str]) -> None:
    rows = connection.execute("SELECT pg_listening_channels()").fetchall()
    if channels - {channel for (channel,) in rows}:
        raise psycopg.OperationalError("the session no longer listens (is there a transaction pooler in between?)")


def _connection_parameters(using: str) -> dict[str, Any]:
    """Return Django's parameters without those that only Django uses, and with the network options that are missing."""
    parameters = connections[using].get_connection_params()
    for name in ("cursor_factory", "context", "prepare_threshold", "server_side_binding", "pool", "isolation_level"):
        parameters.pop(name, None)
    return {**libpq.NETWORK_OPTIONS, "prepare_threshold": None, **parameters}
