"""Deleting chains, with a look at what goes with them."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.admin.models import DELETION
from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_jobchains import chains
from django_jobchains.admin.cascades import jobs_of, needed_by, with_blockers
from django_jobchains.admin.forms import DeleteForm
from django_jobchains.admin.verbs import Find, Refused, Target, Verb
from django_jobchains.conf import get_settings
from django_jobchains.statuses import Status

if TYPE_CHECKING:
    from django_jobchains.admin.acting import Acting


class Delete(Verb):
    name = "delete"
    label = _("Delete")
    permission = "delete_chain"
    statuses = tuple(Status)
    meaning = _(
        "The chains are deleted with all their jobs, attempts and logs. All of them, or none. This cannot be undone."
    )
    form = DeleteForm
    template = "delete"
    is_dangerous = True
    flag = DELETION

    takes_all_jobs = True

    def preview(self, acting: "Acting", request: HttpRequest, targets: Sequence[Target], find: Find) -> dict[str, Any]:
        using, chosen = get_settings().DATABASE, [target.chain_id for target in targets]
        cascade = with_blockers(chosen, using)
        is_allowed = not cascade.is_whole or len(find(cascade.chain_ids)) == len(cascade.chain_ids)
        waiting = needed_by(chosen, using)
        seen = {target.chain_id for target in find({job.chain_id for job in waiting})} if waiting else set()
        return {
            "jobs": jobs_of(chosen, using),
            "more_chains": len(cascade.chain_ids) - len(chosen),
            "jobs_of_all": jobs_of(cascade.chain_ids, using) if cascade.is_whole and is_allowed else None,
            "is_whole": cascade.is_whole,
            "is_cascade_allowed": is_allowed,
            "needed_by": [job for job in waiting if job.chain_id in seen],
            "is_needed_by_others": any(job.chain_id not in seen for job in waiting),
        }

    def gather(self, targets: Sequence[Target], form: Any, find: Find) -> Sequence[Target]:
        """With the cascade also what the targets waited for, and no chain that this user may not delete."""
        if not form.cleaned_data["cascade"]:
            return targets
        cascade = with_blockers([target.chain_id for target in targets], get_settings().DATABASE)
        if not cascade.is_whole:
            raise Refused(_("they waited for too many chains, use the command jobchains delete --cascade"))
        found = find(cascade.chain_ids)
        if len(found) < len(cascade.chain_ids):
            raise Refused(_("they waited for chains that you may not delete"))
        return found

    def do(self, targets: Sequence[Target], form: Any) -> Collection[UUID]:
        return chains.delete([target.chain_id for target in targets])

    def done(self, count: int) -> str:
        return ngettext("%(count)s chain deleted.", "%(count)s chains deleted.", count) % {"count": localize(count)}

    def entry(self, form: Any) -> Any:
        return _("Deleted.")
