"""What the search box finds: each way by an index, the first that finds something is taken, and the page says which."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet, Subquery
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.words import number
from django_jobchains.deduplication import KEY_LENGTH, TENANT_SEPARATOR
from django_jobchains.models import Chain, Job
from django_jobchains.models.jobs import Among
from django_jobchains.pages import PagedQuerySet

Rows = PagedQuerySet[Any]

#: Chains of one key, and jobs whose id begins alike, that are looked at,
MOST_FOUND = 500
#: types that begin alike,
MOST_TYPES = 20
#: and digits of an id that are not found in other words by chance.
LEAST_DIGITS = 8
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Found:
    """``by``: a sentence about what was searched for; empty when nothing was."""

    rows: Rows
    by: str = ""


def find(rows: Rows, term: str, type_names: Callable[[], Iterable[str]]) -> Found:
    """The rows, chains or jobs, that a term means: an id, a deduplication key, or the beginning of a type or an id."""
    term = term.strip()
    if not term:
        return Found(rows)
    if "\0" in term:
        return Found(rows.none())
    found = _by_id(rows, term) or _by_key(rows, term) or _by_type(rows, term, type_names) or _by_start(rows, term)
    return found or Found(rows.none())


def _by_id(rows: Rows, term: str) -> Found | None:
    """Of chains the one that has this job; of jobs this one, and with its first the whole chain."""
    try:
        id_ = UUID(term)
    except ValueError:
        return None
    chain_id = Job.objects.using(rows.db).filter(pk=id_).values_list("chain_id", flat=True).first()
    if chain_id is None:
        return None
    if rows.model is Chain:
        return Found(rows.filter(pk=chain_id), gettext("The chain with this id."))
    if chain_id == id_:
        return Found(rows.filter(chain_id=id_), gettext("The jobs of the chain with this id."))
    return Found(rows.filter(pk=id_), gettext("The job with this id."))


def _by_key(rows: Rows, term: str) -> Found | None:
    """A key with a tenant is found as it is shown, and as tenant/key, which can be typed."""
    if len(term) > KEY_LENGTH:
        return None
    found = _with_key(rows, term)
    return found or (_with_key(rows, term.replace("/", TENANT_SEPARATOR, 1)) if "/" in term else None)


def _with_key(rows: Rows, key: str) -> Found | None:
    firsts = Job.objects.using(rows.db).filter(deduplication_key=key, chain_index=0)
    chain_ids = firsts.order_by("-chain_type_name", "-created_at").values_list("chain_id", flat=True)
    return _among(rows, "id" if rows.model is Chain else "chain_id", chain_ids, gettext("With this deduplication key."))


def _by_type(rows: Rows, term: str, type_names: Callable[[], Iterable[str]]) -> Found | None:
    names = sorted(name for name in type_names() if name.casefold().startswith(term.casefold()))
    if not names:
        return None
    of_types: Rows = rows.of_type(*names[:MOST_TYPES])  # type: ignore[attr-defined]  # both have it
    return Found(of_types, _of_types(names))


def _of_types(names: Sequence[str]) -> str:
    if len(names) == 1:
        return gettext("Of the type %(type)s.") % {"type": names[0]}
    by = ngettext("Of %(count)s type that begins so.", "Of %(count)s types that begin so.", len(names))
    if len(names) > MOST_TYPES:
        by = gettext("Of the first %(most)s of %(count)s types that begin so. Search for more of the name.")
    return by % {"count": number(len(names)), "most": number(MOST_TYPES)}


def _by_start(rows: Rows, term: str) -> Found | None:
    digits = term.casefold().replace("-", "")
    if not LEAST_DIGITS <= len(digits) <= 32 or not _DIGITS.issuperset(digits):
        return None
    between = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    jobs = Job.objects.using(rows.db).filter(pk__range=between).order_by("pk")
    ids = jobs.values_list("chain_id" if rows.model is Chain else "id", flat=True)
    return _among(rows, "id", ids, gettext("With an id that begins so."))


def _among(rows: Rows, column: str, ids: QuerySet[Any], by: str) -> Found | None:
    """Those with one of these ids, which are asked for twice: of a list of values PostgreSQL would expect so many rows
    that it rather walked through all in the order of the page, and hoped to meet them."""
    count = len(ids[: MOST_FOUND + 1])
    if not count:
        return None
    if count > MOST_FOUND:
        more = gettext("%(by)s There are more than the %(most)s that are looked at.")
        by = more % {"by": by, "most": number(MOST_FOUND)}
    return Found(rows.filter(Among(F(column), Subquery(ids[:MOST_FOUND]))), by)
