"""The actions that are offered for chains and for jobs."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import F, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse

from django_jobchains.admin.actions.action import (
    Action,
    ActionTarget,
    CancelAction,
    RescheduleAction,
    RetryAction,
    RunNowAction,
)
from django_jobchains.admin.actions.completion import CompleteAction
from django_jobchains.admin.actions.deletion import DeleteAction
from django_jobchains.admin.actions.views import ActionAdmin, Button
from django_jobchains.admin.visibility import LARGE
from django_jobchains.chains import Chain, Job
from django_jobchains.db.keyset import InArray

CHAIN_ACTIONS: tuple[Action, ...] = (
    CompleteAction(),
    RetryAction(),
    RunNowAction(),
    RescheduleAction(),
    CancelAction(),
    DeleteAction(),
)
#: Without Delete, which deletes whole chains.
JOB_ACTIONS: tuple[Action, ...] = CHAIN_ACTIONS[:-1]


def _changelist_action(action: Action) -> Any:
    """Return the changelist action that shows the confirmation page for the selected rows."""

    @admin.action(description=action.label, permissions=[action.permission])
    def confirm(model_admin: ActionAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return model_admin.confirm_selected(request, action)

    confirm.__name__ = action.name
    return confirm


class ChainActionAdmin(ActionAdmin):
    """Actions on chains, which apply to their current jobs."""

    row_actions = CHAIN_ACTIONS
    actions = [_changelist_action(action) for action in CHAIN_ACTIONS]

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> list[ActionTarget]:
        """Find the chains by their last jobs, at a cost that does not grow with the length of the chains."""
        steps = Job.objects.filter(chain_id=OuterRef("pk")).order_by("-chain_index").values("pk")[:1]
        last = Job.objects.filter(pk__in=ids).annotate(last=Subquery(steps)).values("last")
        chains = rows.filter(InArray(F("current_job_id"), Subquery(last))).order_by()
        chains = chains.select_related("current_job").defer(*LARGE, *(f"current_job__{name}" for name in LARGE))
        return [ActionTarget(chain, chain.current_job) for chain in chains]

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Button]:
        return self.buttons(request, ActionTarget(chain, job)) if job.pk == chain.current_job_id else ()


class JobActionAdmin(ActionAdmin):
    """Actions on jobs."""

    row_actions = JOB_ACTIONS
    actions = [_changelist_action(action) for action in JOB_ACTIONS]

    def targets_among(self, rows: QuerySet[Any], ids: Collection[UUID]) -> list[ActionTarget]:
        return [ActionTarget(job, job) for job in rows.filter(pk__in=ids).order_by().defer(*LARGE)]

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Button]:
        return self.buttons(request, ActionTarget(job, job))
