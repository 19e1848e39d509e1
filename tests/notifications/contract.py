"""The contract as third parties import it."""

from django_jobchains.testing.contracts import Heard, NotifierContract

__all__ = ("Heard", "NotifierContract")
