"""The operations on chains, each with a chain that it changes, for rules that apply to all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobNotFound
from tests.support.chains import Make, failed, pending, scheduled


@dataclass(frozen=True)
class Verb:
    name: str
    call: Callable[..., Any]
    acall: Callable[..., Any]
    #: Creates a chain that the call changes.
    make: Make
    not_found: type[Exception]
    #: Returns the subjects of the hints that the call publishes.
    subjects: Callable[[Chain], set[str]]
    #: Whether the call returns the ids that it changed.
    returns_ids: bool = True

    def __str__(self):
        return self.name


def _of_type(chain):
    return {chain.type_name}


def _of_chain(chain):
    return {str(chain.id)}


CANCEL = Verb("cancel", chains.cancel, chains.acancel, pending, ChainNotFound, _of_chain)
RETRY = Verb("retry", chains.retry, chains.aretry, failed, JobNotFound, _of_type)
RUN_NOW = Verb("run_now", chains.run_now, chains.arun_now, scheduled, JobNotFound, _of_type, False)
RESCHEDULE = Verb(
    "reschedule",
    partial(chains.reschedule, delay=7200),
    partial(chains.areschedule, delay=7200),
    pending,
    JobNotFound,
    _of_type,
    False,
)
DELETE = Verb("delete", chains.delete, chains.adelete, pending, ChainNotFound, _of_chain)

VERBS = (CANCEL, RETRY, RUN_NOW, RESCHEDULE, DELETE)
