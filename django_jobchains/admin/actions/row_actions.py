"""The actions that are offered for chains and for jobs, and who may perform them on which."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.actions.action import HAS_CHANGED, ActionResult, Refused
from django_jobchains.admin.actions.completion import CompleteAction, continuations, declared
from django_jobchains.admin.actions.confirmed import ActionRow, Button, ConfirmedActions
from django_jobchains.admin.actions.job_action import (
    HAS_CONTINUED,
    CancelAction,
    Check,
    DeleteAction,
    JobAction,
    JobTarget,
    RescheduleAction,
    RetryAction,
    RunNowAction,
    reason_of,
)
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.visibility import LARGE, with_current_jobs
from django_jobchains.chains import Chain, Job
from django_jobchains.chains.tree import with_ids
from django_jobchains.conf import current_database
from django_jobchains.db.times import Times
from django_jobchains.declare.job_types import JobType
from django_jobchains.exceptions import JobchainsError
from django_jobchains.models.jobs import shown_status
from django_jobchains.monitoring.facts import label_inputs
from django_jobchains.text.humanize import some_of

#: In the order of their buttons: what people usually want of a row in its state comes first.
CHAIN_ACTIONS: tuple[JobAction, ...] = (
    RetryAction(),
    RunNowAction(),
    RescheduleAction(),
    CancelAction(),
    CompleteAction(),
    DeleteAction(),
)
#: Without Delete, which deletes whole chains.
JOB_ACTIONS = CHAIN_ACTIONS[:-1]


class ActionAdmin(ConfirmedActions, ReadOnlyAdmin):
    """Base class of the actions on chains and on jobs."""

    row_route = "<uuid:object_id>"

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> Sequence[JobTarget]:
        """Return the targets for the rows with these ids."""
        raise NotImplementedError

    def visible_targets(self, request: HttpRequest, keys: Collection[UUID]) -> list[JobTarget]:
        found = self.targets_among(self.get_queryset(request), keys)
        seen = {row.pk for row in self.visibility(request).seen([target.row for target in found])}
        return [target for target in found if target.pk in seen]

    def mark_hidden(self, request: HttpRequest, targets: Sequence[JobTarget], action: Any) -> list[JobTarget]:
        """Set ``is_partly_hidden`` of targets whose row is visible, but not everything that the action changes."""
        visibility, chain_ids = self.visibility(request), [target.chain_id for target in targets]
        if action.changes_all_jobs:
            hidden = visibility.chains_with_hidden_jobs(chain_ids)
        else:
            jobs = visibility.hidden_jobs([target.job.id for target in targets])
            hidden = {target.chain_id for target in targets if target.job.id in jobs}
        hidden |= visibility.hidden_chains(chain_ids)
        return [replace(target, is_partly_hidden=target.chain_id in hidden) for target in targets]

    def is_action_allowed(self, request: HttpRequest, action: Any, target: JobTarget | None = None) -> bool:
        if target is None:
            return self.may(request, action.permission)
        return not target.is_partly_hidden and self.may(request, action.permission, target.row)

    def action_headings(self) -> list[Any]:
        return [_("Type"), _("Status"), _("Action"), _("Id")]

    def action_row(self, target: JobTarget, refusal: Any) -> ActionRow:
        status, url = shown_status(target.job, Times(current_database())), self.page_url("change", target.pk)
        return ActionRow(target.row.type_name, url, status.value, status.label, refusal, id=target.pk)

    def action_labels(self, request: HttpRequest, targets: Sequence[JobTarget]) -> dict[UUID, str]:
        visibility = self.visibility(request)
        inputs = label_inputs([target.row for target in targets], current_database())
        hidden = visibility.hidden_jobs(inputs.keys())
        return {
            target.pk: visibility.label(target.row, target.job, inputs.get(target.pk))
            for target in targets
            if target.pk not in hidden
        }

    def perform_action(
        self, request: HttpRequest, action: Any, targets: Sequence[JobTarget], form: Any, result: ActionResult
    ) -> list[Model]:
        def perform(targets: Sequence[JobTarget]) -> Collection[UUID]:
            try:
                return action.perform(targets, form, check)  # type: ignore[no-any-return]
            except JobchainsError as error:
                raise Refused(reason_of(error)) from error

        check: Check = partial(self._refuse_disallowed, request, action)
        changed: set[UUID] = set()
        if action.is_one_by_one:
            # In the order in which the store locks jobs, which avoids deadlocks.
            for target in sorted(targets, key=lambda target: target.job.id):
                try:
                    changed.update(perform([target]))
                except Refused as error:
                    result.skip(error, [target.pk])
        else:
            changed.update(perform(targets))
            result.skip(HAS_CHANGED, (target.pk for target in targets if target.pk not in changed))
        return [target.row for target in targets if target.pk in changed]

    def _refuse_disallowed(self, request: HttpRequest, action: JobAction, targets: Sequence[JobTarget]) -> None:
        """Raise ``Refused`` if a chain has continued with a job that this user may not perform the action on.

        The caller has locked the chains, which may have continued between the read of the targets and the lock.
        """
        chains = Chain.objects.using(current_database())
        by_id = {chain.id: chain for chain in with_ids(with_current_jobs(chains), [each.chain_id for each in targets])}
        continued = []
        for target in targets:
            chain = by_id.get(target.chain_id)
            if chain is not None and chain.current_job_id != target.job.id:
                row = chain if isinstance(target.row, Chain) else target.row
                continued.append(replace(target, row=row, job=chain.current_job))
        marked = self.mark_hidden(request, continued, action)
        refused = [target.pk for target in marked if not self.is_action_allowed(request, action, target)]
        if refused:
            raise Refused(f"{HAS_CONTINUED} ({some_of(refused)})")

    def next_types(self, request: HttpRequest, job: Job) -> Mapping[str, JobType[Any, Any]]:
        """Return the types that this user may continue the job's chain with, by name.

        By default, users with the permission ``enqueue_job`` may choose among the ``continues_with`` of the job's type
        or, if it is not set, among the ``entry_types`` of the chain admin. A subclass may return any types that the
        job's type allows, also for users without the permission.
        """
        visibility, job_type = self.visibility(request), declared(job.type_name)
        if not visibility.may("enqueue_job", job):
            return {}
        types = continuations(job.type_name)
        if job_type is not None and job_type.continues_with is not None:
            return types
        entries = visibility.entry_types()
        return {name: job_type for name, job_type in types.items() if name in entries}


class ChainActionAdmin(ActionAdmin):
    """Actions on chains, which apply to their current jobs."""

    row_actions = CHAIN_ACTIONS

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> list[JobTarget]:
        chains = with_ids(rows, ids).order_by()
        chains = chains.select_related("current_job").defer(*LARGE, *(f"current_job__{name}" for name in LARGE))
        return [JobTarget(chain, chain.current_job) for chain in chains]

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Button]:
        return self.action_buttons(request, JobTarget(chain, job)) if job.pk == chain.current_job_id else ()


class JobActionAdmin(ActionAdmin):
    """Actions on jobs."""

    row_actions = JOB_ACTIONS

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> list[JobTarget]:
        return [JobTarget(job, job) for job in rows.filter(pk__in=ids).order_by().defer(*LARGE)]

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Button]:
        return self.action_buttons(request, JobTarget(job, job))
