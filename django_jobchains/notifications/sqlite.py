"""Wake-ups without a server: ``PRAGMA data_version`` changes when another connection commits to the file."""

from django.db import connections
from django.db.backends.utils import CursorWrapper

from django_jobchains.notifications.base import Listener, ListeningThread, Notifier, Subscribers

#: The pause between two queries, each of which takes a few microseconds.
POLL_SECONDS = 0.02


class SqliteNotifier(Notifier):
    """Sends nothing: the commit itself is the hint."""

    def connect(self, subscribers: Subscribers) -> Listener:
        return SqliteListener(self.using, subscribers)


class SqliteListener(ListeningThread):
    def __init__(self, using: str, subscribers: Subscribers) -> None:
        self._using = using
        super().__init__(f"jobchains-listener-{using}", subscribers)

    def watch(self) -> None:
        connection = connections[self._using]
        try:
            with connection.cursor() as cursor:
                last = _data_version(cursor)
                self.connected()
                while not self.closing.wait(POLL_SECONDS):
                    if (version := _data_version(cursor)) != last:
                        last = version
                        self.subscribers.resync(self.kinds)
        finally:
            connection.close()


def _data_version(cursor: CursorWrapper) -> int:
    cursor.execute("PRAGMA data_version")
    row: tuple[int] = cursor.fetchone()
    return row[0]
