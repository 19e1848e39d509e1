"""The types of tasks of Django's framework that were ever enqueued, so that any worker finds them."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from django_jobchains.db.connections import call_after_commit
from django_jobchains.store.database import Part, names_json, statement
from django_jobchains.store.errors import retried
from django_jobchains.store.rows import NewJob

#: The names that this process knows to be in the table of a database, by its alias.
_known: defaultdict[str, set[str]] = defaultdict(set)


class TaskNames(Part):
    def add_new(self, jobs: Iterable[NewJob]) -> None:
        """Store the types of tasks among these jobs that this process has not stored yet, in the caller's transaction.

        Outside of a transaction, a name may be stored without the job that follows.
        """
        new = {job.type_name for job in jobs if job.is_task} - _known[self.db.using]
        if not new:
            return

        def remember() -> None:
            # Django's test cases can call the hooks of a transaction that they roll back later.
            if not self.db.connection.in_atomic_block:
                _known[self.db.using].update(new)

        self.db.fetch(self._add, [names_json(sorted(new))])
        call_after_commit(self.db.using, remember)

    @retried
    def read(self) -> Collection[str]:
        return {name for (name,) in self.db.fetch(f"SELECT DISTINCT name FROM {self.tables.task_name}", [])}

    @statement
    def _add(self) -> str:
        return f"""
            INSERT INTO {self.tables.task_name} (name) SELECT d.name FROM {self.db.rows("name text")}
            WHERE NOT EXISTS (SELECT 1 FROM {self.tables.task_name} AS other WHERE other.name = d.name) RETURNING name
        """


def forget_names(*, using: str, **kwargs: Any) -> None:
    """Receive ``post_migrate``, which also follows when all tables have been emptied."""
    _known.pop(using, None)
