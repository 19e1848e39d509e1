"""A notifier that records the hints it should send."""

from contextlib import contextmanager

from django.test import override_settings

from django_jobchains.notifications import Notifier

#: One entry for each call: the database alias, and the subjects of the hints that were sent together.
sent = []


class RecordingNotifier(Notifier):
    def send(self, hints):
        sent.append((self.using, {hint.subject for hint in hints}))


class FailingNotifier(Notifier):
    def __init__(self, using, error):
        super().__init__(using)
        self.error = error

    def send(self, hints):
        raise self.error("no network")


@contextmanager
def notifier(name, **options):
    backend = {"BACKEND": f"{__name__}.{name}", "OPTIONS": options}
    with override_settings(JOBCHAINS={"NOTIFIER": backend}):
        yield
