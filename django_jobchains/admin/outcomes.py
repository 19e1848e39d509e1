"""Doing a verb to what was chosen, and telling what was done and what was not, and why."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from logging import getLogger
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import OperationalError, transaction
from django.http import HttpRequest
from django.utils.formats import localize
from django.utils.translation import gettext, ngettext

from django_jobchains.admin import audit
from django_jobchains.admin.verbs import CHANGED_MEANWHILE, Find, Refused, Target, Verb, reason_of
from django_jobchains.admin.words import some_of
from django_jobchains.conf import get_settings
from django_jobchains.exceptions import JobchainsError
from django_jobchains.texts import log_error

logger = getLogger("django_jobchains")

MOST_REASONS = 10


@dataclass
class Outcome:
    """``problem``: why nothing was done at all."""

    done: Sequence[Target] = ()
    #: Ids, by the reason why it was not done to them.
    refused: dict[str, list[UUID]] = field(default_factory=dict)
    problem: str = ""

    def refuse(self, reason: Any, ids: Iterable[UUID]) -> None:
        if ids := list(ids):
            self.refused.setdefault(str(reason), []).extend(ids)


def carry_out(
    request: HttpRequest, verb: Verb, targets: Sequence[Target], form: Any, find: Find, outcome: Outcome
) -> None:
    """Does it to these, and writes the admin's log, in one transaction."""
    try:
        targets = verb.gather(targets, form, find)
        with transaction.atomic(using=get_settings().DATABASE):
            ids = (_do_each if verb.is_one_by_one else _do_all)(verb, targets, form, outcome)
            done = [target for target in targets if target.row.pk in ids]
            audit.log(request, [target.row for target in done], verb.entry(form), verb=verb.name, flag=verb.flag)
    except JobchainsError as error:
        outcome.problem = reason_of(error)
    except Refused as error:
        outcome.problem = str(error)
    except OperationalError as error:
        log_error(logger, error, "Admin: a database error undid the action %s: %s", verb.name)
        outcome.problem = gettext("the database could not do it now, try again")
    else:
        outcome.done = done


def _do_all(verb: Verb, targets: Sequence[Target], form: Any, outcome: Outcome) -> Collection[UUID]:
    ids = verb.do(targets, form)
    outcome.refuse(CHANGED_MEANWHILE, (target.row.pk for target in targets if target.row.pk not in ids))
    return ids


def _do_each(verb: Verb, targets: Sequence[Target], form: Any, outcome: Outcome) -> Collection[UUID]:
    """In the order in which the store locks jobs, so that two such calls do not wait for each other."""
    done: set[UUID] = set()
    for target in sorted(targets, key=lambda target: target.job.id):
        try:
            done.update(verb.do([target], form))
        except JobchainsError as error:
            outcome.refuse(reason_of(error), [target.row.pk])
        except Refused as error:
            outcome.refuse(error, [target.row.pk])
    return done


def tell(request: HttpRequest, verb: Verb, outcome: Outcome) -> None:
    """A message for what was done, and one for each reason why something was not."""
    if outcome.problem:
        messages.error(request, gettext("Nothing was changed: %(reason)s.") % {"reason": outcome.problem.rstrip(".")})
    if outcome.done:
        messages.success(request, verb.done(len(outcome.done)))
    for reason, ids in list(outcome.refused.items())[:MOST_REASONS]:
        messages.warning(request, _left(reason, ids))


def _left(reason: str, ids: Sequence[UUID]) -> str:
    text = ngettext(
        "%(count)s left as it is: %(reason)s (%(names)s).",
        "%(count)s left as they are: %(reason)s (%(names)s).",
        len(ids),
    )
    return text % {"count": localize(len(ids)), "reason": reason, "names": some_of(ids)}
