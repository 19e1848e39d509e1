"""The search of the lists: several indexed lookups, of which the first with a result is used and shown on the page.

If rows are hidden, each lookup considers only visible rows before it limits its result, so that neither the result nor
the choice of the lookup reveals anything about hidden rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.utils.translation import gettext, ngettext

from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.db.keyset import InArray, PagedQuerySet
from django_jobchains.models import Chain, Job
from django_jobchains.store.deduplication import KEY_LENGTH, TENANT_SEPARATOR
from django_jobchains.text.humanize import number

Rows = PagedQuerySet[Any]

#: The number of matches of a deduplication key or of the beginning of an id.
MAX_MATCHES = 500
#: The number of rows that are checked with ``has_view_permission`` to find these matches.
MAX_CHECKED = 5_000
#: The number of matching types.
MAX_TYPES = 20
#: The number of hexadecimal digits from which a term is taken for the beginning of an id.
MIN_DIGITS = 8
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class SearchResult:
    """The matching rows, and a sentence about how the term was interpreted; empty without a term."""

    rows: Rows
    summary: str = ""


def find(
    rows: Rows, term: str, type_names: Callable[[], Iterable[str]], visibility: Visibility | None = None
) -> SearchResult:
    """Find chains or jobs by an id, a deduplication key, or the beginning of a type or an id.

    Pass ``visibility`` if rows may be hidden from the user.
    """
    term = term.strip()
    if not term:
        return SearchResult(rows)
    if "\0" in term:
        return SearchResult(rows.none())
    search = _Search(rows, term, visibility)
    found = search.by_id() or search.by_key() or search.by_type(type_names) or search.by_start()
    return found or SearchResult(rows.none())


class _Search:
    def __init__(self, rows: Rows, term: str, visibility: Visibility | None) -> None:
        self.rows, self.term, self.visibility = rows, term, visibility
        self.is_of_chains = rows.model is Chain
        models = (rows.model, Chain)
        self.checks_each_row = visibility is not None and any(visibility.checks_each_row(model) for model in models)

    def by_id(self) -> SearchResult | None:
        """Find the chain of a job, or a job. The id of a chain, which its first job shares, finds all its jobs."""
        try:
            id_ = UUID(self.term)
        except ValueError:
            return None
        jobs = Job.objects.using(self.rows.db).filter(pk=id_)
        chain_id = (self._with_chain(jobs) if self.is_of_chains else jobs).values_list("chain_id", flat=True).first()
        if chain_id is None:
            return None
        if self.is_of_chains:
            return self._found(lambda rows: rows.filter(pk=chain_id), gettext("The chain with this id."))
        is_hidden = self.visibility is not None and bool(self.visibility.hidden_chains([chain_id]))
        if chain_id == id_ and not is_hidden:
            return self._found(lambda rows: rows.filter(chain_id=id_), gettext("The jobs of the chain with this id."))
        return self._found(lambda rows: rows.filter(pk=id_), gettext("The job with this id."))

    def by_key(self) -> SearchResult | None:
        """Find a deduplication key as it is shown or, if it has a tenant, as ``tenant/key``."""
        if len(self.term) > KEY_LENGTH:
            return None
        found = self._with_key(self.term)
        return found or (self._with_key(self.term.replace("/", TENANT_SEPARATOR, 1)) if "/" in self.term else None)

    def _with_key(self, key: str) -> SearchResult | None:
        first_jobs: QuerySet[Job] = Job.objects.using(self.rows.db).filter(deduplication_key=key, chain_index=0)
        first_jobs = first_jobs.order_by("-chain_type_name", "-created_at")
        column = "id" if self.is_of_chains else "chain_id"
        summary = gettext("Matches for this deduplication key.")
        return self._among(column, self._within(first_jobs, column), "chain_id", summary)

    def by_type(self, type_names: Callable[[], Iterable[str]]) -> SearchResult | None:
        names = sorted(name for name in type_names() if name.casefold().startswith(self.term.casefold()))
        if not names:
            return None
        if self.visibility is not None:
            # The text names neither a limit nor a count, which would include types that are hidden from the user.
            return self._found(lambda rows: rows.of_type(*names), gettext("Types that start with this text."))
        of_types: Rows = self.rows.of_type(*names[:MAX_TYPES])  # type: ignore[attr-defined]  # both have it
        return SearchResult(of_types, _of_types(names))

    def by_start(self) -> SearchResult | None:
        digits = self.term.casefold().replace("-", "")
        if not MIN_DIGITS <= len(digits) <= 32 or not _DIGITS.issuperset(digits):
            return None
        between = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
        jobs: QuerySet[Job] = Job.objects.using(self.rows.db).filter(pk__range=between).order_by("pk")
        jobs = self._with_chain(jobs) if self.is_of_chains else self._within(jobs, "id")
        return self._among(
            "id", jobs, "chain_id" if self.is_of_chains else "id", gettext("Ids that start with this text.")
        )

    def _with_chain(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Restrict jobs to visible ones of visible chains. The first job may be hidden: it has the chain's id."""
        if self.visibility is None:
            return jobs
        jobs = self._within(jobs, "id")
        is_job_visible = Q(Exists(self.visibility.rows(Job).filter(pk=OuterRef("pk"))))
        if self.visibility.checks_each_row(Job):
            is_job_visible = Q(pk__in=[job.pk for job in _seen(jobs.filter(is_job_visible), self.visibility)])
        return jobs.filter(Q(chain_index=0) | is_job_visible)

    def _within(self, jobs: QuerySet[Job], column: str) -> QuerySet[Job]:
        """Restrict jobs to jobs that lead to visible rows: the chain, the job, or the jobs of the chain."""
        if self.visibility is None:
            return jobs
        if self.is_of_chains or column == "chain_id":
            jobs = self.visibility.within(Chain, jobs, "chain_id", "id")
        return jobs if self.is_of_chains else self.visibility.within(Job, jobs, column, column)

    def _found(self, narrow: Callable[[Any], Any], summary: str) -> SearchResult | None:
        """Return the rows that ``narrow`` finds, or None if all of them are hidden."""
        if self.visibility is not None:
            visible_rows = narrow(self.visibility.rows(self.rows.model))
            is_there = _seen(visible_rows, self.visibility) if self.checks_each_row else visible_rows.exists()
            if not is_there:
                return None
        return SearchResult(narrow(self.rows), summary)

    def _among(self, column: str, jobs: QuerySet[Job], name: str, summary: str) -> SearchResult | None:
        """Find the rows whose ``column`` is one of the values of ``name`` of the jobs."""
        if self.checks_each_row and self.visibility is not None:
            return self._checked(column, jobs.values_list(name, flat=True), summary, self.visibility)
        # The ids are queried twice. For a list of values, PostgreSQL would overestimate the number of rows, and scan
        # all rows in the order of the page instead.
        ids = jobs.values_list(name, flat=True)
        count = len(ids[: MAX_MATCHES + 1])
        if not count:
            return None
        return SearchResult(self.rows.filter(InArray(F(column), Subquery(ids[:MAX_MATCHES]))), _limited(summary, count))

    def _checked(self, column: str, ids: QuerySet[Any], summary: str, visibility: Visibility) -> SearchResult | None:
        """Find the same rows if each must be checked, without counting hidden ones."""
        rows = _seen(self.rows.filter(InArray(F(column), Subquery(ids[:MAX_CHECKED]))), visibility)
        if column == "chain_id":
            hidden = visibility.hidden_chains({row.chain_id for row in rows})
            rows = [row for row in rows if row.chain_id not in hidden]
        seen = [row.pk for row in rows[: MAX_MATCHES + 1]]
        return SearchResult(self.rows.filter(pk__in=seen[:MAX_MATCHES]), _limited(summary, len(seen))) if seen else None


def _seen(rows: QuerySet[Any], visibility: Visibility) -> list[Any]:
    return visibility.seen(rows.defer(*LARGE)[:MAX_CHECKED])


def _limited(summary: str, count: int) -> str:
    if count <= MAX_MATCHES:
        return summary
    more = gettext("Only the first %(limit)s matches are shown.") % {"limit": number(MAX_MATCHES)}
    return f"{summary} {more}"


def _of_types(names: Sequence[str]) -> str:
    if len(names) == 1:
        return gettext("Type %(type)s.") % {"type": names[0]}
    summary = ngettext(
        "%(count)s type that starts with this text.", "%(count)s types that start with this text.", len(names)
    )
    if len(names) > MAX_TYPES:
        summary = gettext("The first %(limit)s of %(count)s types that start with this text. Enter more of the name.")
    return summary % {"count": number(len(names)), "limit": number(MAX_TYPES)}
