"""Hints over a NATS server, and wake budgets in its JetStream where it has one."""

import atexit
import importlib.util
import re
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from django_jobchains.db import call_in_forks
from django_jobchains.notifications.base import Listener, Notifier, Subscribers, default_prefix
from django_jobchains.notifications.hints import KINDS, Hint, HintKind

try:
    from django_jobchains.notifications.nats.thread import MAX_WAITING, NatsListener, NatsThread, Outbox
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

    The thread starts when it is first needed. After a fork, the child starts another one.

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
        self.subjects: dict[HintKind, str] = {kind: f"{prefix}.{kind}" for kind in KINDS}
        self._name = f"jobchains-nats-{using}"
        self._options = {"servers": self._servers, **credentials}
        self._budgets = WakeBudgets(prefix.replace(".", "_") + "_wakes", wanted=budgets)
        self._reset()
        _notifiers.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._outbox = Outbox(self.subjects)
        self._thread: NatsThread | None = None
        self._has_sent = False

    def forget_parent(self) -> None:
        """Start again in a forked child: the thread, the socket and the listeners belong to the parent."""
        _kept_for_parents.append(self._thread)
        self._reset()

    def send(self, hints: Collection[Hint]) -> None:
        """Hand hints to the thread. Raises ``OutboxFull`` if too many wait for the server already."""
        with self._lock:
            self._has_sent = True
            dropped = self._outbox.add(hints)
            thread = self._started_thread()
        thread.wake()
        if dropped:
            raise OutboxFull(
                f"{dropped} of {len(hints)} hints were dropped, because {MAX_WAITING} wait for the NATS server already"
            )

    def connect(self, subscribers: Subscribers) -> Listener:
        listener = NatsListener(f"{self._name}-hints", self.subjects, subscribers, self._stop_if_idle)
        with self._lock:
            thread = self._started_thread()
            thread.add(listener)
        thread.wake()
        return listener

    def take(self, hint: Hint, limit: int, group: str) -> int | None:
        """See ``Notifier.take``. Waits for a fifth of a second at most."""
        thread = self._thread
        if hint.count is None or not hint.id or thread is None or not thread.is_connected:
            return None
        return thread.take(hint, limit, group)

    def security_problem(self) -> str | None:
        for server in self._servers:
            parts = urlsplit(server)
            if not self._has_credentials and parts.username is None:
                return f"the NATS server at {parts.hostname}:{parts.port} is used without credentials"
        return None

    def close(self) -> None:
        """Send what waits, for one second at most, and stop the thread unless there are listeners."""
        with self._lock:
            thread = self._thread
            must_flush = thread and self._has_sent and (thread.is_connected or self._outbox)
        if thread and must_flush:
            thread.flush()
        with self._lock:
            self._has_sent = False
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        with self._lock:
            thread = self._thread
            is_idle = thread is not None and not thread.has_listeners and not self._has_sent
            if is_idle:
                self._thread = None
        if thread:
            thread.stop() if is_idle else thread.wake()

    def _started_thread(self) -> NatsThread:
        if self._thread is None:
            self._thread = NatsThread(self._name, self._options, self._outbox, self._budgets)
        return self._thread


class OutboxFull(Exception):
    """Hints were dropped because too many wait for the server already."""


_notifiers: weakref.WeakSet[NatsNotifier] = weakref.WeakSet()
#: Threads of parents, kept in a forked child so that none of their resources are cleaned up.
_kept_for_parents: list[object] = []


def _forget_parents() -> None:
    for notifier in list(_notifiers):
        notifier.forget_parent()


def _close_all() -> None:
    for notifier in list(_notifiers):
        notifier.close()


call_in_forks(_forget_parents)
# A command that enqueues and ends immediately still has to send its hints.
atexit.register(_close_all)


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
