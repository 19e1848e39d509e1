"""The contract of a store."""

from django_jobchains.testing.contracts.blocking import Blocking
from django_jobchains.testing.contracts.claiming import Claiming
from django_jobchains.testing.contracts.creating import Creating
from django_jobchains.testing.contracts.ending import Ending
from django_jobchains.testing.contracts.intervening import Intervening
from django_jobchains.testing.contracts.keeping import Keeping
from django_jobchains.testing.contracts.locking import Locking
from django_jobchains.testing.contracts.noting import Noting
from django_jobchains.testing.contracts.statements import CountingStatements


class StoreContract(Creating, Claiming, Ending, Locking, Blocking, Intervening, Keeping, Noting, CountingStatements):
    """What every store does, on a database with the package's migrations, which threads and connections share::

        class TestMine(StoreContract):
            def make(self) -> Store:
                return MyStore("default")

    ``make`` is optional: without it, it is the store that ``JOBCHAINS["STORE"]`` names. ``locks_rows`` says whether
    transactions write beside each other.
    """
