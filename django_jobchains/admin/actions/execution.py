"""Performs an action on the selected rows, and reports which rows were changed and why others were not."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import OperationalError, transaction
from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.actions import audit
from django_jobchains.admin.actions.action import (
    HAS_CHANGED,
    HAS_CONTINUED,
    Action,
    ActionTarget,
    Check,
    Refused,
    reason_of,
)
from django_jobchains.admin.visibility import with_current_jobs
from django_jobchains.chains.tree import with_ids
from django_jobchains.conf import get_settings
from django_jobchains.exceptions import JobchainsError
from django_jobchains.models import Chain
from django_jobchains.text.errors import log_error
from django_jobchains.text.humanize import some_of

if TYPE_CHECKING:
    from django_jobchains.admin.actions.views import ActionAdmin

logger = getLogger("django_jobchains")

#: The number of different reasons that are reported.
MAX_REASONS = 10


@dataclass
class ActionResult:
    """The changed targets, the skipped ids by reason, and in ``problem`` the reason why nothing was changed at all."""

    changed: Sequence[Any] = ()
    skipped: dict[str, list[Any]] = field(default_factory=dict)
    problem: str = ""

    def skip(self, reason: Any, ids: Iterable[Any]) -> None:
        if ids := list(ids):
            self.skipped.setdefault(str(reason), []).extend(ids)


def carry_out(
    model_admin: "ActionAdmin",
    request: HttpRequest,
    action: Action,
    targets: Sequence[ActionTarget],
    form: Any,
    result: ActionResult,
) -> None:
    """Perform the action on these targets and write the log entries, in one transaction.

    An action may raise a ``ValidationError``, which is added to the form.
    """
    check = partial(_refuse_disallowed, model_admin, request, action)
    try:
        targets = action.expand(targets, form, model_admin.finder(request, action))
        with transaction.atomic(using=get_settings().DATABASE):
            ids = (_perform_each if action.is_one_by_one else _perform_together)(action, targets, form, check, result)
            changed = [target for target in targets if target.row.pk in ids]
            rows = [target.row for target in changed]
            audit.log(request, rows, action.log_message(form), verb=action.name, flag=action.flag)
    except JobchainsError as error:
        result.problem = reason_of(error)
    except Refused as error:
        result.problem = str(error)
    except ValidationError as error:
        form.add_error(None, error)
    except OperationalError as error:
        log_error(logger, error, "Admin: a database error undid the action %s: %s", action.name)
        result.problem = gettext("a database error occurred, try again")
    else:
        result.changed = changed


def _refuse_disallowed(
    model_admin: "ActionAdmin", request: HttpRequest, action: Action, targets: Sequence[ActionTarget]
) -> None:
    """Raise ``Refused`` if a chain has continued with a job that this user may not perform the action on.

    The caller has locked the chains, which may have continued between the read of the targets and the lock.
    """
    continued = model_admin.mark_hidden(request, _continued(targets), action)
    refused = [target.row.pk for target in continued if not model_admin.is_allowed(request, action, target)]
    if refused:
        raise Refused(f"{HAS_CONTINUED} ({some_of(refused)})")


def _continued(targets: Sequence[ActionTarget]) -> list[ActionTarget]:
    """Return the targets whose chains have continued with another job, with that job."""
    found = with_ids(
        with_current_jobs(Chain.objects.using(get_settings().DATABASE)), [target.chain_id for target in targets]
    )
    by_id = {chain.id: chain for chain in found}
    current = [(target, by_id[target.chain_id]) for target in targets if target.chain_id in by_id]
    return [
        replace(target, row=chain if isinstance(target.row, Chain) else target.row, job=chain.current_job)
        for target, chain in current
        if chain.current_job_id != target.job.id
    ]


def _perform_together(
    action: Action, targets: Sequence[ActionTarget], form: Any, check: Check, result: ActionResult
) -> Collection[UUID]:
    ids = action.perform(targets, form, check)
    result.skip(HAS_CHANGED, (target.row.pk for target in targets if target.row.pk not in ids))
    return ids


def _perform_each(
    action: Action, targets: Sequence[ActionTarget], form: Any, check: Check, result: ActionResult
) -> Collection[UUID]:
    """Perform the action on each target in the order in which the store locks jobs, which avoids deadlocks."""
    changed: set[UUID] = set()
    for target in sorted(targets, key=lambda target: target.job.id):
        try:
            changed.update(action.perform([target], form, check))
        except JobchainsError as error:
            result.skip(reason_of(error), [target.row.pk])
        except Refused as error:
            result.skip(error, [target.row.pk])
    return changed


class Announced(Protocol):
    """An action with a message about the changed rows."""

    def success_message(self, count: int) -> str: ...


def show_result(request: HttpRequest, action: Announced, result: ActionResult) -> None:
    """Add a message about the changed rows, and one for each reason why rows were skipped."""
    if result.problem:
        messages.error(request, gettext("Nothing was changed: %(reason)s.") % {"reason": result.problem.rstrip(".")})
    if result.changed:
        messages.success(request, action.success_message(len(result.changed)))
    for reason, ids in list(result.skipped.items())[:MAX_REASONS]:
        messages.warning(request, _skipped(reason, ids))


def _skipped(reason: str, ids: Sequence[object]) -> str:
    text = ngettext(
        "%(count)s row skipped: %(reason)s (%(names)s).",
        "%(count)s rows skipped: %(reason)s (%(names)s).",
        len(ids),
    )
    return text % {"count": localize(len(ids)), "reason": reason, "names": some_of(ids)}
