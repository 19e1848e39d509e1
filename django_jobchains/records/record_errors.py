"""The errors of records.

JobchainsError
├── RegistryError
│   └── RecordTypeNotFound       no app handles records of a model
└── LeaseLost
    └── RecordLost               the record does not exist, or belongs to another attempt
"""

from typing import Any

from django_jobchains.exceptions import JobchainsError, LeaseLost, RegistryError


class RecordTypeNotFound(RegistryError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"No app handles records of {name}: register it with @processors.records({name}), in a jobs module."
        )


class RecordLost(LeaseLost):
    """The attempt no longer holds its record, so nothing was written. ``reason`` is an abort reason."""

    def __init__(self, id: Any, reason: str) -> None:
        self.id = id
        self.reason = reason
        JobchainsError.__init__(self, f"This attempt may no longer write to record {id}: {reason.replace('_', ' ')}.")
