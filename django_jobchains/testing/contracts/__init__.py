"""The contracts of notifiers, stores, payload codecs, payload types, record models and pools, as pytest tests.

Subclass one, and define how your object is created. Run it with pytest, or with ``manage.py run_contract``. See
``docs/guides/write-your-own.md``.
"""

try:
    import pytest  # noqa: F401
    import pytest_django  # noqa: F401
except ImportError as error:
    text = "django_jobchains.testing.contracts holds pytest tests: pip install pytest pytest-django"
    raise ImportError(text, name=error.name) from error

from django_jobchains.testing.contracts.blockers import BlockerTests
from django_jobchains.testing.contracts.claims import ClaimTests
from django_jobchains.testing.contracts.creation import CreationTests
from django_jobchains.testing.contracts.delivery import DeliveryTests
from django_jobchains.testing.contracts.interventions import InterventionTests
from django_jobchains.testing.contracts.job_logs import JobLogTests
from django_jobchains.testing.contracts.leases import LeaseTests
from django_jobchains.testing.contracts.locks import LockTests
from django_jobchains.testing.contracts.maintenance import MaintenanceTests
from django_jobchains.testing.contracts.notifier_tests import ReceivedHints
from django_jobchains.testing.contracts.on_failure import FailureTests
from django_jobchains.testing.contracts.outcomes import OutcomeTests
from django_jobchains.testing.contracts.payload_codecs import PayloadCodecContract
from django_jobchains.testing.contracts.payload_types import PayloadTypeContract
from django_jobchains.testing.contracts.pools import PoolContract
from django_jobchains.testing.contracts.publication import PublicationTests
from django_jobchains.testing.contracts.reading import ReadingTests
from django_jobchains.testing.contracts.record_logs import RecordLogTests
from django_jobchains.testing.contracts.record_races import RecordRaceTests
from django_jobchains.testing.contracts.records import RecordMoveTests
from django_jobchains.testing.contracts.statement_counts import StatementCountTests
from django_jobchains.testing.contracts.wake_budgets import WakeBudgetTests

__all__ = (
    "NotifierContract",
    "PayloadCodecContract",
    "PayloadTypeContract",
    "PoolContract",
    "ReceivedHints",
    "RecordContract",
    "StoreContract",
)


class NotifierContract(PublicationTests, DeliveryTests, WakeBudgetTests):
    """The tests that every notifier passes. Define how one is created::

        class TestMine(NotifierContract):
            def make(self) -> Notifier:
                return MyNotifier("default")

    The attributes ``carries_hints``, ``calls_back`` and ``has_budgets`` describe what it can do. ``interrupt`` stops
    its server. If it uses the database, mark the class ``pytest.mark.django_db(transaction=True)``.
    """


class RecordContract(RecordMoveTests, RecordLogTests, RecordRaceTests):
    """The tests that every model of records passes. Name its registration, and define how a record is created::

        class TestUploads(RecordContract):
            name = "uploads.upload"

            def make(self) -> Upload:
                return Upload.objects.create()

    The tests write to the model's table, and delete its rows.
    """


class StoreContract(
    CreationTests,
    ClaimTests,
    OutcomeTests,
    LeaseTests,
    LockTests,
    BlockerTests,
    FailureTests,
    InterventionTests,
    MaintenanceTests,
    JobLogTests,
    ReadingTests,
    StatementCountTests,
):
    """The tests that every store passes, on a database with the package's migrations that several connections share::

        class TestMine(StoreContract):
            def make(self) -> Store:
                return MyStore("default")

    Without ``make``, the store in the setting ``JOBCHAINS["STORE"]`` is tested. ``locks_rows`` is whether several
    transactions can write at the same time.
    """
