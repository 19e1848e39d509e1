"""Which steps of a long chain are on its page, and what leads to the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.http import HttpRequest
from django.utils.translation import ngettext

from django_jobchains.admin import reads
from django_jobchains.admin.addresses import address
from django_jobchains.admin.steps import StepView
from django_jobchains.admin.words import number


@dataclass(frozen=True)
class Gap:
    """Steps that are not on the page; ``url`` is empty for those that are hidden from the user."""

    text: str
    url: str = ""


def places_shown(count: int, first: int | None) -> list[range]:
    """The places of the steps that are shown: some from a number on, or the first and the last."""
    if first is not None:
        return [range(first - 1, min(count, first - 1 + reads.STEPS_ON_PAGE))]
    half = reads.STEPS // 2
    return [range(count)] if count <= reads.STEPS else [range(half), range(count - half, count)]


def with_gaps(
    views: Mapping[int, StepView], places: Sequence[range], count: int, request: HttpRequest
) -> list[StepView | Gap]:
    """Return the steps in their order, with what stands for the others: those outside of ``places`` have links."""
    items: list[StepView | Gap] = []
    expected = 0
    for part in places:
        items += _gap(expected, part.start, request)
        for is_shown, group in groupby(part, views.__contains__):
            run = list(group)
            items += [views[place] for place in run] if is_shown else [_hidden(len(run))]
        expected = part.stop
    return [*items, *_gap(expected, count, request, is_last=True)]


def _hidden(count: int) -> Gap:
    text = ngettext("%(count)s step that you may not view", "%(count)s steps that you may not view", count)
    return Gap(text % {"count": number(count)})


def _gap(begin: int, end: int, request: HttpRequest, *, is_last: bool = False) -> list[Gap]:
    """Leads to the steps that follow those above, or before the first ones shown to the ones right before them."""
    if begin >= end:
        return []
    count = end - begin
    text = ngettext("%(count)s step is not shown here", "%(count)s steps are not shown here", count)
    first = begin + 1 if begin or is_last else max(1, end + 1 - reads.STEPS_ON_PAGE)
    return [Gap(text % {"count": number(count)}, address(request, **{"from": first}))]
