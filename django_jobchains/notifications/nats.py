"""Hints over a NATS server, and wake budgets in its JetStream where it has one."""

import importlib.util
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.notifications.base import Notifier, default_prefix
from django_jobchains.notifications.hints import Hint
from django_jobchains.notifications.subscribing import Listener, Subscribers

try:
    from django_jobchains.notifications.nats_connection import NatsConnection
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "nats":
        raise
    raise ImproperlyConfigured("Wake-ups over NATS need nats-py: install django_jobchains[nats].") from error

from django_jobchains.notifications.nats_budgets import WakeBudgets
from django_jobchains.notifications.nats_listener import NatsListener

#: Who the client is; each as nats-py's ``Client.connect`` takes it.
CREDENTIALS = ("user", "password", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str")
#: An ``ssl.SSLContext``, whose certificate may be one, and how it is used.
ENCRYPTION = ("tls", "tls_hostname", "tls_handshake_first")

DEFAULT_PORT = 4222
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class NatsNotifier(Notifier):
    """Sends and listens on one connection per process, which a thread of its own keeps: no caller waits for it.

    ``servers``: a URL, ``nats://`` or ``tls://``, or several of one cluster. ``prefix``: of the subjects; projects that
    share a server have one each; the default is ``"django_jobchains"``, and ``"django_jobchains.<alias>"`` for another
    database than ``JOBCHAINS["DATABASE"]``. ``budgets``: whether JetStream shares jobs out among those who hear of
    them: None, if the server has it; True, the same with a warning if it has not; False, never. Credentials have
    nats-py's names: ``user``, ``password``, ``token``, ``user_credentials``, ``nkeys_seed``, ``nkeys_seed_str``,
    ``tls``, ``tls_hostname``, ``tls_handshake_first``.

    Raises ``ImproperlyConfigured`` for options it cannot use.
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
            raise ImproperlyConfigured(f"prefix: letters, digits, '_', '-', and '.' between them, not {prefix!r}.")
        _check(credentials)
        self._servers = [_with_port(server) for server in ([servers] if isinstance(servers, str) else servers)]
        if not self._servers:
            raise ImproperlyConfigured("servers: at least one URL.")
        self._has_credentials = not credentials.keys().isdisjoint({*CREDENTIALS, "tls"})
        self._connection = NatsConnection(
            f"jobchains-nats-{using}",
            {"servers": self._servers, **credentials},
            prefix,
            WakeBudgets(prefix.replace(".", "_") + "_wakes", wanted=budgets),
        )

    def send(self, hints: Collection[Hint]) -> None:
        """Hands them to the connection's thread. Raises ``OutboxFull`` when too many wait for the server already."""
        self._connection.send(hints)

    def connect(self, subscribers: Subscribers) -> Listener:
        return NatsListener(self._connection, subscribers, f"jobchains-nats-{self.using}-hints")

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        return self._connection.take(hint, most, group)

    def unprotected(self) -> str | None:
        """Names a server that is used without credentials; None if there is no such server."""
        for server in self._servers:
            parts = urlsplit(server)
            if not self._has_credentials and parts.username is None:
                return f"the NATS server at {parts.hostname}:{parts.port} is used without credentials"
        return None

    def close(self) -> None:
        self._connection.close()


def _check(credentials: dict[str, Any]) -> None:
    known = (*CREDENTIALS, *ENCRYPTION)
    if unknown := ", ".join(credentials.keys() - set(known)):
        raise ImproperlyConfigured(f"Unknown options of NatsNotifier: {unknown}. Known: {', '.join(known)}.")
    needs_keys = not credentials.keys().isdisjoint(("user_credentials", "nkeys_seed", "nkeys_seed_str"))
    if needs_keys and importlib.util.find_spec("nkeys") is None:
        raise ImproperlyConfigured("Keys and credentials files need nkeys: install nats-py[nkeys].")


def _with_port(server: str) -> str:
    """What is wrong with it is said without it: there may be a password in it."""
    url = server if "://" in server else f"nats://{server}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured("servers: a URL has no valid address or port.") from None
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise ImproperlyConfigured("servers: URLs are nats://host:port or tls://host:port.")
    return f"{parts.scheme}://{parts.netloc}" if port else f"{parts.scheme}://{parts.netloc.rstrip(':')}:{DEFAULT_PORT}"
