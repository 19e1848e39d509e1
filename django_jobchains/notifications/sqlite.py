"""Wake-ups without a server: ``PRAGMA data_version`` changes when another connection commits to the file."""

from collections.abc import Callable

from django.db import connections
from django.db.backends.utils import CursorWrapper

from django_jobchains.notifications.base import Hint, Listener, Notifier
from django_jobchains.notifications.listening import ListeningThread

#: Between looks. One costs a few microseconds.
LOOK_SECONDS = 0.02


class SqliteNotifier(Notifier):
    """Sends nothing: the commit itself is the hint."""

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        return SqliteListener(self.using, on_hint)


class SqliteListener(ListeningThread):
    def __init__(self, using: str, on_hint: Callable[[Hint], None]) -> None:
        self._using = using
        super().__init__(f"jobchains-listener-{using}", on_hint)

    def watch(self) -> None:
        connection = connections[self._using]
        try:
            with connection.cursor() as cursor:
                last = _data_version(cursor)
                self.connected()
                while not self.closing.wait(LOOK_SECONDS):
                    if (version := _data_version(cursor)) != last:
                        last = version
                        self.look()
        finally:
            connection.close()


def _data_version(cursor: CursorWrapper) -> int:
    cursor.execute("PRAGMA data_version")
    row: tuple[int] = cursor.fetchone()
    return row[0]
