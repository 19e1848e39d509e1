"""Creating the chains that items describe."""

import json
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobchains.conf import get_settings
from django_jobchains.db.connections import opened_connections
from django_jobchains.exceptions import TransactionRequired
from django_jobchains.models import Chain
from django_jobchains.payload_types import OutputT_co
from django_jobchains.payloads import HasOutput
from django_jobchains.store import Effects, NewJob, get_store
from django_jobchains.telemetry import observes
from django_jobchains.telemetry.events import ChainCreated, JobCreated
from django_jobchains.telemetry.tracing import start_sending
from django_jobchains.wakeups import publish, report_created

#: Faster than ``json.loads``, which looks for whitespace on both sides.
_read = json.JSONDecoder().raw_decode
#: The id of a deleted job may be used again. Random first lease numbers keep the attempts of both jobs apart.
MAX_FIRST_LEASE = 2**30


@dataclass(slots=True)
class Item(NewJob, Generic[OutputT_co]):
    """The first job of a chain to create, with its input already checked."""

    job_type: HasOutput[OutputT_co] | None = None


def create_chains(items: Sequence[Item[OutputT_co]], using: str | None = None) -> list[Chain[OutputT_co]]:
    """Create chains in the caller's transaction, in order, with a constant number of statements."""
    store = get_store(using)
    if not items:
        return []
    connection = connections[store.using]
    _check_transaction(connection)
    # Only items whose id the caller has chosen have a lease number. Such an id may exist already, and the savepoint
    # keeps the caller's transaction usable after that error.
    is_guarded = connection.in_atomic_block and any(item.lease_number for item in items)
    guard = transaction.atomic(store.using) if is_guarded else nullcontext()
    effects, sent = Effects(), start_sending(items, store.chains.contexts)
    with guard:
        rows = store.jobs.create(items, effects)
    publish(store.using, effects)
    if sent is not None or observes(JobCreated, ChainCreated):
        fresh = [item for item, row in zip(items, rows, strict=True) if not row.is_deduplicated]
        report_created(store.using, fresh, effects, sent)
    # The chains are not read. A deduplicated chain has its own input, which is read when it is needed.
    created: list[Chain[OutputT_co]] = []
    for item, row in zip(items, rows, strict=True):
        chain: Chain[OutputT_co] = Chain.partly_known(store.using)
        chain.id, chain.type_name, chain.created_at = row.id, item.type_name, row.created_at
        chain.job_type = item.job_type
        if row.is_deduplicated:
            chain.deduplicated = True
        else:
            chain.input = _read(item.input)[0]
        created.append(chain)
    return created


def _check_transaction(connection: BaseDatabaseWrapper) -> None:
    """Raise ``TransactionRequired``, or warn, if the settings do not allow an enqueue on this connection now."""
    settings = get_settings()
    may_have_another = settings.OTHER_TRANSACTION != "ignore" and len(connections.settings) > 1
    if not (settings.REQUIRE_TRANSACTION or may_have_another) or _is_in_transaction(connection):
        return
    if settings.REQUIRE_TRANSACTION:
        raise TransactionRequired(connection.alias)
    for other in opened_connections():
        if _is_in_atomic(other):
            error = TransactionRequired(connection.alias, other.alias)
            if settings.OTHER_TRANSACTION == "error":
                raise error
            # The line that calls ``JobType.enqueue`` or ``chains.enqueue_many``, which call ``create_chains``.
            warnings.warn(str(error), RuntimeWarning, stacklevel=4)
            return


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    return _is_in_atomic(connection) or not (connection.in_atomic_block or connection.get_autocommit())


def _is_in_atomic(connection: BaseDatabaseWrapper) -> bool:
    """Return whether an atomic block is open, other than the blocks around a ``TestCase`` and its tests."""
    return any(not block._from_testcase for block in connection.atomic_blocks)  # type: ignore[attr-defined]
