"""Selects the steps of a long chain that its page shows, and links to the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.http import HttpRequest
from django.utils.translation import ngettext

from django_jobchains.admin.detail import queries
from django_jobchains.admin.detail.steps import StepView
from django_jobchains.admin.urls import url_with
from django_jobchains.text.humanize import number


@dataclass(frozen=True)
class OmittedSteps:
    """Consecutive steps that the page does not show. ``url`` is empty if they are hidden from the user."""

    text: str
    url: str = ""


def shown_ranges(count: int, first: int | None) -> list[range]:
    """Return the ranges of step indexes to show: those from the number ``first``, or the first and the last ones."""
    if first is not None:
        return [range(first - 1, min(count, first - 1 + queries.STEPS_PER_PAGE))]
    half = queries.MAX_STEPS // 2
    return [range(count)] if count <= queries.MAX_STEPS else [range(half), range(count - half, count)]


def with_omitted(
    views: Mapping[int, StepView], ranges: Sequence[range], count: int, request: HttpRequest
) -> list[StepView | OmittedSteps]:
    """Return the steps in order, with placeholders for the others, with links if they are outside of ``ranges``."""
    items: list[StepView | OmittedSteps] = []
    expected = 0
    for indexes in ranges:
        items += _omitted(expected, indexes.start, request)
        for is_shown, group in groupby(indexes, views.__contains__):
            run = list(group)
            items += [views[index] for index in run] if is_shown else [_hidden(len(run))]
        expected = indexes.stop
    return [*items, *_omitted(expected, count, request, is_last=True)]


def _hidden(count: int) -> OmittedSteps:
    text = ngettext("%(count)s step that you may not view", "%(count)s steps that you may not view", count)
    return OmittedSteps(text % {"count": number(count)})


def _omitted(begin: int, end: int, request: HttpRequest, *, is_last: bool = False) -> list[OmittedSteps]:
    """Link to the steps that follow the ones above or, at the top of the page, precede the ones below."""
    if begin >= end:
        return []
    count = end - begin
    text = ngettext("%(count)s step is not shown here", "%(count)s steps are not shown here", count)
    first = begin + 1 if begin or is_last else max(1, end + 1 - queries.STEPS_PER_PAGE)
    return [OmittedSteps(text % {"count": number(count)}, url_with(request, **{"from": first}))]
