"""Hints over a NATS server, and wake budgets in its JetStream where it has one."""

import importlib.util
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.notifications.base import Notifier, default_prefix
from django_jobchains.notifications.hints import Hint
from django_jobchains.notifications.subscriptions import Listener, Subscribers

try:
    from django_jobchains.notifications.nats.connection import NatsConnection
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "nats":
        raise
    raise ImproperlyConfigured("Wake-ups over NATS need nats-py: install django_jobchains[nats].") from error

from django_jobchains.notifications.nats.budgets import WakeBudgets

#: Options that identify the client, with the names and types of nats-py's ``Client.connect``.
CREDENTIALS = ("user", "password", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str")
#: Options for TLS. The certificate of the ``ssl.SSLContext`` may identify the client, too.
ENCRYPTION = ("tls", "tls_hostname", "tls_handshake_first")

DEFAULT_PORT = 4222
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class NatsNotifier(Notifier):
    """Sends and listens on one connection per process. Its own thread keeps the connection, so no caller waits for it.

    ``servers``: a ``nats://`` or ``tls://`` URL, or several of one cluster. ``prefix``: the prefix of the subjects,
    different for each project that shares the server. The default is ``"django_jobchains"``, and
    ``"django_jobchains.<alias>"`` for a database other than ``JOBCHAINS["DATABASE"]``. ``budgets``: whether JetStream
    distributes jobs among the workers that receive a hint. None: if the server has JetStream; True: the same, with a
    warning if it has not; False: never. Credentials have the names of nats-py: ``user``, ``password``, ``token``,
    ``user_credentials``, ``nkeys_seed``, ``nkeys_seed_str``, ``tls``, ``tls_hostname``, ``tls_handshake_first``.

    Raises ``ImproperlyConfigured`` for invalid options.
    """

    def __init__(
        self,
        using: str,
        servers: str | Sequence[str] = f"nats://127.0.0.1:{DEFAULT_PORT}",
        prefix: str | None = None,
        budgets: bool | None = None,
        **credentials: Any,
    ) -> None:
        super().__init__(using)
        prefix = default_prefix(using) if prefix is None else prefix
        if not _PREFIX.fullmatch(prefix):
            raise ImproperlyConfigured(
                f"prefix: {prefix!r} may contain letters, digits, '_' and '-', with '.' between them only."
            )
        _check_credentials(credentials)
        self._servers = [_with_port(server) for server in ([servers] if isinstance(servers, str) else servers)]
        if not self._servers:
            raise ImproperlyConfigured("servers: give at least one URL.")
        self._has_credentials = not credentials.keys().isdisjoint({*CREDENTIALS, "tls"})
        self._connection = NatsConnection(
            f"jobchains-nats-{using}",
            {"servers": self._servers, **credentials},
            prefix,
            WakeBudgets(prefix.replace(".", "_") + "_wakes", wanted=budgets),
        )

    def send(self, hints: Collection[Hint]) -> None:
        """Hand hints to the connection's thread. Raises ``OutboxFull`` if too many wait for the server already."""
        self._connection.send(hints)

    def connect(self, subscribers: Subscribers) -> Listener:
        return self._connection.listen(subscribers)

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        return self._connection.take(hint, limit, group)

    def security_problem(self) -> str | None:
        for server in self._servers:
            parts = urlsplit(server)
            if not self._has_credentials and parts.username is None:
                return f"the NATS server at {parts.hostname}:{parts.port} is used without credentials"
        return None

    def close(self) -> None:
        self._connection.close()


def _check_credentials(credentials: dict[str, Any]) -> None:
    known = (*CREDENTIALS, *ENCRYPTION)
    if unknown := ", ".join(credentials.keys() - set(known)):
        raise ImproperlyConfigured(f"Unknown options of NatsNotifier: {unknown}. Known: {', '.join(known)}.")
    needs_nkeys = not credentials.keys().isdisjoint(("user_credentials", "nkeys_seed", "nkeys_seed_str"))
    if needs_nkeys and importlib.util.find_spec("nkeys") is None:
        raise ImproperlyConfigured("Keys and credentials files need nkeys: install nats-py[nkeys].")


def _with_port(server: str) -> str:
    """Return the URL of a server. Errors do not quote it, because it may contain a password."""
    url = server if "://" in server else f"nats://{server}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured("servers: a URL has an invalid address or port.") from None
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise ImproperlyConfigured("servers: write each URL as nats://host:port or tls://host:port.")
    return f"{parts.scheme}://{parts.netloc}" if port else f"{parts.scheme}://{parts.netloc.rstrip(':')}:{DEFAULT_PORT}"
