"""A notifier that records the hints it should send."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from django.test import override_settings

from django_jobchains.notifications import Hint, Notifier

#: One entry for each call: the database alias, and the subjects of the hints that were sent together.
sent: list[tuple[str, set[str]]] = []


class RecordingNotifier(Notifier):
    def send(self, hints: Collection[Hint]) -> None:
        sent.append((self.using, {hint.subject for hint in hints}))


class FailingNotifier(Notifier):
    def __init__(self, using: str, error: type[Exception]) -> None:
        super().__init__(using)
        self.error = error

    def send(self, hints: Collection[Hint]) -> None:
        raise self.error("no network")


@contextmanager
def notifier(name: str, **options: Any) -> Iterator[None]:
    backend = {"BACKEND": f"{__name__}.{name}", "OPTIONS": options}
    with override_settings(JOBCHAINS={"NOTIFIER": backend}):
        yield
