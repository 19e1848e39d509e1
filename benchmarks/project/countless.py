"""PostgreSQL's notifier, whose hints have no number of jobs here, so that each hint wakes all idle workers."""

from collections.abc import Collection

from django_jobchains.notifications import Hint
from django_jobchains.notifications.postgres import PostgresNotifier


class CountlessNotifier(PostgresNotifier):
    def send(self, hints: Collection[Hint]) -> None:
        super().send([Hint(hint.kind, hint.subject) for hint in hints])
