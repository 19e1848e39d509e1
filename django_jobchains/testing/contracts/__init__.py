"""What every notifier and every store does, as pytest tests.

Subclass one, say how yours is made, and they run for it: ``docs/guides/write-your-own.md``.
"""

try:
    import pytest  # noqa: F401
    import pytest_django  # noqa: F401
except ImportError as error:
    text = "django_jobchains.testing.contracts holds pytest tests: pip install pytest pytest-django"
    raise ImportError(text, name=error.name) from error

from django_jobchains.testing.contracts.hearing import Heard
from django_jobchains.testing.contracts.notifiers import NotifierContract
from django_jobchains.testing.contracts.stores import StoreContract

__all__ = ("Heard", "NotifierContract", "StoreContract")
