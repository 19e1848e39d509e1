"""The contracts of notifiers, payload codecs, payload types and pools, as pytest tests.

Subclass one, and define how your object is created. Run it with pytest, or with ``manage.py run_contract``. See
``docs/guides/write-your-own.md``.
"""

try:
    import pytest  # noqa: F401
    import pytest_django  # noqa: F401
except ImportError as error:
    text = "django_jobchains.testing.contracts holds pytest tests: pip install pytest pytest-django"
    raise ImportError(text, name=error.name) from error

from django_jobchains.testing.contracts.delivery import DeliveryTests
from django_jobchains.testing.contracts.notifier_tests import ReceivedHints
from django_jobchains.testing.contracts.payload_codecs import PayloadCodecContract
from django_jobchains.testing.contracts.payload_types import PayloadTypeContract
from django_jobchains.testing.contracts.pools import PoolContract
from django_jobchains.testing.contracts.publication import PublicationTests
from django_jobchains.testing.contracts.wake_budgets import WakeBudgetTests

__all__ = (
    "NotifierContract",
    "PayloadCodecContract",
    "PayloadTypeContract",
    "PoolContract",
    "ReceivedHints",
)


class NotifierContract(PublicationTests, DeliveryTests, WakeBudgetTests):
    """The tests that every notifier passes. Define how one is created::

        class TestMine(NotifierContract):
            def make(self) -> Notifier:
                return MyNotifier("default")

    The attributes ``carries_hints``, ``calls_back`` and ``has_budgets`` describe what it can do. ``interrupt`` stops
    its server. If it uses the database, mark the class ``pytest.mark.django_db(transaction=True)``.
    """
