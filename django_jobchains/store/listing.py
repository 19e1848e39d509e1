"""What a person who looks through the rows asks: which types there are; and that no question lasts for ever."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError

from django_jobchains.models import Chain
from django_jobchains.store.dialect import Dialect
from django_jobchains.store.errors import retried


class Listing(Dialect):
    @retried
    def type_names(self, limit: int) -> list[str]:
        """The types of the jobs there are, in order; one index probe for each."""
        return self._names(self.job, limit)

    @retried
    def chain_type_names(self, limit: int) -> list[str]:
        """The same of the chains."""
        return self._names(self.connection.ops.quote_name(Chain._meta.db_table), limit)

    def _names(self, table: str, limit: int) -> list[str]:
        # Sub-selects, so that each step is a probe of its own: for a join the database might read the whole table.
        first = f"SELECT type_name FROM {table} ORDER BY type_name LIMIT 1"
        following = (
            f"SELECT row.type_name FROM {table} AS row WHERE row.type_name > names.name ORDER BY row.type_name LIMIT 1"
        )
        rows = self._fetch(
            f"WITH RECURSIVE names(name) AS (SELECT ({first}) UNION ALL SELECT ({following}) FROM names "
            "WHERE names.name IS NOT NULL) SELECT name FROM (SELECT name FROM names LIMIT %s) AS found "
            "WHERE name IS NOT NULL",
            [limit],
        )
        return [name for (name,) in rows]

    @contextmanager
    def reads_within(self, seconds: float) -> Iterator[None]:
        """Reads inside that take longer end with an ``OperationalError`` that ``is_out_of_time`` knows.

        For a database that has no such limit it does nothing.
        """
        yield

    def is_out_of_time(self, error: OperationalError) -> bool:
        """Whether a read was ended so, and the transaction that ``reads_within`` joined is as before."""
        return False
