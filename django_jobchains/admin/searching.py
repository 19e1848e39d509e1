"""What the search box finds: each way by an index, the first that finds something is taken, and the page says which.

Where rows are hidden, every way looks among the visible ones only, and limits what it finds after that. Neither what is
found nor the way that is taken tells anything about hidden rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.admin.words import number
from django_jobchains.deduplication import KEY_LENGTH, TENANT_SEPARATOR
from django_jobchains.models import Chain, Job
from django_jobchains.models.jobs import Among
from django_jobchains.pages import PagedQuerySet

Rows = PagedQuerySet[Any]

#: Chains of one key, and jobs whose id begins alike, that are looked at,
MOST_FOUND = 500
#: of these, rows that ``has_view_permission`` is asked about to find so many,
MOST_CHECKED = 5_000
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


def find(rows: Rows, term: str, type_names: Callable[[], Iterable[str]], visibility: Visibility | None = None) -> Found:
    """Find the chains or jobs that a term means: an id, a deduplication key, or the beginning of a type or an id.

    ``visibility``: what decides among rows some of which are hidden from the user; None when none is.
    """
    term = term.strip()
    if not term:
        return Found(rows)
    if "\0" in term:
        return Found(rows.none())
    search = _Search(rows, term, visibility)
    found = search.by_id() or search.by_key() or search.by_type(type_names) or search.by_start()
    return found or Found(rows.none())


class _Search:
    def __init__(self, rows: Rows, term: str, visibility: Visibility | None) -> None:
        self.rows, self.term, self.visibility = rows, term, visibility
        self.is_of_chains = rows.model is Chain
        models = (rows.model, Chain)
        self.checks_each_row = visibility is not None and any(visibility.checks_each_row(model) for model in models)

    def by_id(self) -> Found | None:
        """Of chains the one that has this job; of jobs this one, and with its first the whole chain."""
        try:
            id_ = UUID(self.term)
        except ValueError:
            return None
        jobs = Job.objects.using(self.rows.db).filter(pk=id_)
        chain_id = (self._with_chain(jobs) if self.is_of_chains else jobs).values_list("chain_id", flat=True).first()
        if chain_id is None:
            return None
        if self.is_of_chains:
            return self._found(Q(pk=chain_id), gettext("The chain with this id."))
        if chain_id == id_ and not self._is_hidden(chain_id):
            return self._found(Q(chain_id=id_), gettext("The jobs of the chain with this id."))
        return self._found(Q(pk=id_), gettext("The job with this id."))

    def by_key(self) -> Found | None:
        """A key with a tenant is found as it is shown, and as tenant/key, which can be typed."""
        if len(self.term) > KEY_LENGTH:
            return None
        found = self._with_key(self.term)
        return found or (self._with_key(self.term.replace("/", TENANT_SEPARATOR, 1)) if "/" in self.term else None)

    def _with_key(self, key: str) -> Found | None:
        firsts: QuerySet[Job] = Job.objects.using(self.rows.db).filter(deduplication_key=key, chain_index=0)
        firsts = firsts.order_by("-chain_type_name", "-created_at")
        column = "id" if self.is_of_chains else "chain_id"
        return self._among(column, self._within(firsts, column), "chain_id", gettext("With this deduplication key."))

    def by_type(self, type_names: Callable[[], Iterable[str]]) -> Found | None:
        names = sorted(name for name in type_names() if name.casefold().startswith(self.term.casefold()))
        if not names:
            return None
        if self.visibility is not None:
            # Without a limit, which types that the user does not see could use up, and without a number of them.
            return self._found(Q(type_name__in=names), gettext("Types that start with this text."))
        of_types: Rows = self.rows.of_type(*names[:MOST_TYPES])  # type: ignore[attr-defined]  # both have it
        return Found(of_types, _of_types(names))

    def by_start(self) -> Found | None:
        digits = self.term.casefold().replace("-", "")
        if not LEAST_DIGITS <= len(digits) <= 32 or not _DIGITS.issuperset(digits):
            return None
        between = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        jobs: QuerySet[Job] = Job.objects.using(self.rows.db).filter(pk__range=between).order_by("pk")
        jobs = self._with_chain(jobs) if self.is_of_chains else self._within(jobs, "id")
        return self._among(
            "id", jobs, "chain_id" if self.is_of_chains else "id", gettext("Ids that start with this text.")
        )

    def _with_chain(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Narrow jobs to visible ones of visible chains; the id of the first job is the chain's own."""
        if self.visibility is None:
            return jobs
        is_job_visible = Exists(self.visibility.rows(Job).filter(pk=OuterRef("pk")))
        return self._within(jobs, "id").filter(Q(chain_index=0) | Q(is_job_visible))

    def _within(self, jobs: QuerySet[Job], column: str) -> QuerySet[Job]:
        """Narrow jobs to those that lead to a visible row: to a chain, to itself, or to the jobs of its chain."""
        if self.visibility is None:
            return jobs
        if self.is_of_chains or column == "chain_id":
            jobs = self.visibility.within(Chain, jobs, "chain_id", "id")
        return jobs if self.is_of_chains else self.visibility.within(Job, jobs, column, column)

    def _is_hidden(self, chain_id: UUID) -> bool:
        return self.visibility is not None and bool(self.visibility.hidden_chains([chain_id]))

    def _found(self, condition: Q, by: str) -> Found | None:
        """Take this way, unless all that it would find is hidden."""
        if self.visibility is not None:
            visible = self.visibility.rows(self.rows.model).filter(condition)
            is_there = _seen(visible, self.visibility) if self.checks_each_row else visible.exists()
            if not is_there:
                return None
        return Found(self.rows.filter(condition), by)

    def _among(self, column: str, jobs: QuerySet[Job], name: str, by: str) -> Found | None:
        """Find the rows with one of the ids, which ``name`` has of the jobs and ``column`` of the rows."""
        if self.checks_each_row and self.visibility is not None:
            return self._checked(column, jobs.values_list(name, flat=True), by, self.visibility)
        # Asked for twice: of a list of values PostgreSQL would expect so many rows that it rather walked through all in
        # the order of the page, and hoped to meet them.
        ids = jobs.values_list(name, flat=True)
        count = len(ids[: MOST_FOUND + 1])
        if not count:
            return None
        return Found(self.rows.filter(Among(F(column), Subquery(ids[:MOST_FOUND]))), _limited(by, count))

    def _checked(self, column: str, ids: QuerySet[Any], by: str, visibility: Visibility) -> Found | None:
        """The same where each row is asked about: what is hidden does not count."""
        rows = _seen(self.rows.filter(Among(F(column), Subquery(ids[:MOST_CHECKED]))), visibility)
        if column == "chain_id":
            hidden = visibility.hidden_chains({row.chain_id for row in rows})
            rows = [row for row in rows if row.chain_id not in hidden]
        seen = [row.pk for row in rows[: MOST_FOUND + 1]]
        return Found(self.rows.filter(pk__in=seen[:MOST_FOUND]), _limited(by, len(seen))) if seen else None


def _seen(rows: QuerySet[Any], visibility: Visibility) -> list[Any]:
    return visibility.seen(rows.defer(*LARGE)[:MOST_CHECKED])


def _limited(by: str, count: int) -> str:
    if count <= MOST_FOUND:
        return by
    more = gettext("Only the first %(most)s matches are shown.") % {"most": number(MOST_FOUND)}
    return f"{by} {more}"


def _of_types(names: Sequence[str]) -> str:
    if len(names) == 1:
        return gettext("Of the type %(type)s.") % {"type": names[0]}
    by = ngettext(
        "%(count)s type that starts with this text.", "%(count)s types that start with this text.", len(names)
    )
    if len(names) > MOST_TYPES:
        by = gettext("The first %(most)s of %(count)s types that start with this text. Enter more of the name.")
    return by % {"count": number(len(names)), "most": number(MOST_TYPES)}
