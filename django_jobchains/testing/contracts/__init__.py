"""Contracts for notifiers, payload codecs, payload types and pools, as classes of pytest tests.

Subclass one of them, define how your object is created, and run the tests with pytest. See
``docs/guides/write-your-own.md``.
"""

try:
    import pytest  # noqa: F401
    import pytest_django  # noqa: F401
except ImportError as error:
    text = "django_jobchains.testing.contracts holds pytest tests: pip install pytest pytest-django"
    raise ImportError(text, name=error.name) from error

from django_jobchains.testing.contracts.notifiers import NotifierContract, ReceivedHints
from django_jobchains.testing.contracts.payloads import PayloadCodecContract, PayloadTypeContract
from django_jobchains.testing.contracts.pools import PoolContract

__all__ = (
    "NotifierContract",
    "PayloadCodecContract",
    "PayloadTypeContract",
    "PoolContract",
    "ReceivedHints",
)
