"""Chains, which are a view of the jobs, and the locks of their deduplication keys."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NoReturn, Self
from uuid import UUID

from django.db import models
from django.db.models import F, OuterRef
from django.db.models.base import ModelState
from django.utils.translation import gettext_lazy as _

from django_jobchains.conf import get_settings
from django_jobchains.db.ids import ChainPart, ChainRef, chain_id_of
from django_jobchains.db.keyset import InArray, JobTablesQuerySet, Orders, PagedQuerySet
from django_jobchains.enqueue_options import KEY_LENGTH
from django_jobchains.exceptions import ChainNotFound, InvalidOutput
from django_jobchains.models.chain_view import NAME
from django_jobchains.models.jobs import (
    QUEUE_LENGTH,
    TYPE_NAME_LENGTH,
    Job,
    JobBlocker,
    JobQuerySet,
    check_statuses,
    not_a_blocker,
)
from django_jobchains.models.payload_fields import PayloadField, PayloadTextField
from django_jobchains.payload_codecs import Unreadable
from django_jobchains.payload_types import OutputT_co
from django_jobchains.payloads import output_codec
from django_jobchains.results import await_chain, wait
from django_jobchains.statuses import OPEN, Status

#: The number of ids in one statement. SQLite allows 32,766 parameters.
MAX_IDS = 10_000
#: Columns of the last job that are also columns of the chain, or that a chain does not need.
_LARGE_OF_LAST_JOB = ("current_job__input", "current_job__output", "current_job__last_error", "current_job__context")


class ChainQuerySet(PagedQuerySet["Chain"]):
    page_orders: Orders = (("-id",), ("id",))

    def with_status(self, *statuses: str) -> "ChainQuerySet":
        return self._any_of("status", check_statuses(statuses))

    def of_type(self, *type_names: str) -> "ChainQuerySet":
        return self._any_of("type_name", type_names)

    def of_chain_type(self, *type_names: str) -> "ChainQuerySet":
        """Do the same as ``of_type``, so that chains and jobs can be filtered in the same way."""
        return self.of_type(*type_names)

    def roots(self) -> "ChainQuerySet":
        """Chains that no job has as a blocker."""
        return self.filter(not_a_blocker("id"))

    def incomplete(self) -> "ChainQuerySet":
        """Chains that may still run: their last job is blocked, pending or running."""
        return self._any_of("status", OPEN)

    def blocked_by(self, chain: ChainRef) -> "ChainQuerySet":
        """Chains with a job that has this chain as a blocker, even if it no longer waits for it."""
        links = JobBlocker.objects.filter(blocker=chain_id_of(chain))
        return self.filter(InArray(F("id"), models.Subquery(links.values("job__chain_id"))))

    def update(self, **values: Any) -> NoReturn:
        raise TypeError("Chains cannot be updated directly. Use the functions of django_jobchains.chains.")

    def delete(self) -> NoReturn:
        raise TypeError("Chains cannot be deleted directly. Use django_jobchains.chains.delete(ids).")

    update.alters_data = delete.alters_data = True  # type: ignore[attr-defined]


class OutputField(PayloadField):
    """The output of a chain. Queries call it ``output``; instances have the JSON value as ``stored_output``."""

    def contribute_to_class(self, cls: type[models.Model], name: str, private_only: bool = False) -> None:
        super().contribute_to_class(cls, "output", private_only)

    def get_attname(self) -> str:
        return f"stored_{self.name}"

    def get_attname_column(self) -> tuple[str, str]:
        return self.get_attname(), self.name


class Chain(ChainPart[OutputT_co], models.Model):
    """A job and its continuations: the input of the first job, and the status and output of the last.

    A snapshot: fields that enqueueing does not know are read on first access, and ``refresh()`` reads them again.
    ``input`` is the JSON value as stored.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    type_name = models.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    input = PayloadField(_("input"), null=True)
    deduplication_key = models.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)  # noqa: DJ001
    created_at = models.DateTimeField(_("created at"))
    #: The last job of the chain so far.
    current_job = models.ForeignKey(Job, models.DO_NOTHING, related_name="+", verbose_name=_("current job"))
    status = models.CharField(_("status"), max_length=10, choices=Status)
    #: The queue of the current job.
    queue = models.CharField(_("queue"), max_length=QUEUE_LENGTH)
    #: The output of the last job, as stored. None until the chain is completed.
    stored_output = OutputField(_("output"), null=True)
    last_error = PayloadTextField(_("last error"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)

    #: True if enqueueing returned an existing chain.
    deduplicated = False
    #: The JobType that the caller knows the chain to start with. It need not be in the registry.
    job_type: Any = None

    objects = ChainQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        managed = False  # a view, see chain_view
        db_table = NAME
        verbose_name = _("chain")
        verbose_name_plural = _("chains")
        default_permissions = ("view", "delete")

    def __str__(self) -> str:
        return f"{self.type_name} {self.id}"

    def save(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A chain cannot be saved directly. Use the functions of django_jobchains.chains.")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A chain cannot be deleted directly. Use django_jobchains.chains.delete(chain.id).")

    @classmethod
    def partly_known(cls, using: str) -> Self:
        """Create a chain with all fields deferred, for the caller to set. Faster than ``from_db``."""
        chain = cls.__new__(cls)
        chain._state = ModelState()
        chain._state.adding, chain._state.db = False, using
        return chain

    @classmethod
    def load(cls, job_id: UUID, using: str) -> "Chain":
        """Read the chain of a job; the first one has its id. Raises ``ChainNotFound``."""
        chain_id = models.Subquery(Job.objects.filter(pk=job_id).values("chain_id")[:1])
        try:
            return cls._of_last_job(cls.objects.using(using), chain_id).get()
        except cls.DoesNotExist as error:
            raise ChainNotFound(job_id) from error

    @staticmethod
    def _of_last_job(chains: ChainQuerySet, chain_id: UUID | models.Subquery) -> ChainQuerySet:
        """Find the chain by its last job, which is fast however many jobs it has, and read both at the same moment."""
        last = Job.objects.filter(chain_id=chain_id).order_by("-chain_index").values("id")[:1]
        return chains.filter(current_job__in=last).select_related("current_job")

    @classmethod
    def blockers_of(cls, job_ids: Iterable[UUID], using: str) -> "dict[UUID, list[Chain]]":
        """Return the blockers of each job, in the order in which they were passed.

        Each chain is found by its last job with one index probe: the view would scan every job of a long chain.
        """
        last = Job.objects.filter(chain_id=OuterRef("blocker_id")).order_by("-chain_index").values("id")[:1]
        links = JobBlocker.objects.using(using).filter(job_id__in=job_ids).order_by("job_id", "position")
        rows = list(links.values_list("job_id", "blocker_id", models.Subquery(last)))
        last_ids = list({last_id for _, _, last_id in rows})
        chains: dict[UUID, Chain] = {}
        for start in range(0, len(last_ids), MAX_IDS):
            found = cls.objects.using(using).filter(current_job__in=last_ids[start : start + MAX_IDS])
            chains |= found.select_related("current_job").defer(*_LARGE_OF_LAST_JOB).in_bulk()
        blockers: dict[UUID, list[Chain]] = {}
        for job_id, chain_id, _last in rows:  # a failed chain may have been retried and continued in between
            blockers.setdefault(job_id, []).append(chains.get(chain_id) or cls.load(chain_id, using))
        return blockers

    @property
    def output(self) -> OutputT_co:
        """The output of the last job, as a value of its type. None until the chain is completed.

        It is a JSON value if no app declares the type of the last job. Raises ``InvalidOutput`` if a stored value does
        not fit the type. For several chains, ``select_related("current_job")`` avoids a query for each.
        """
        output: OutputT_co = self.stored_output
        if isinstance(output, Unreadable):
            raise InvalidOutput(f"Chain {self.id}: {output.reason}")
        if self.status == Status.COMPLETED:
            output = output_codec(self.last_type_name, self.job_type).validate(output, InvalidOutput)
        return output

    @property
    def last_type_name(self) -> str:
        """The type of the last job."""
        name: str = self.type_name if self.current_job_id == self.id else self.current_job.type_name
        return name

    @property
    def chain_id(self) -> UUID:  # type: ignore[override]
        """The same as ``id``, so that chains and jobs can be passed in the same way."""
        chain_id: UUID = self.id
        return chain_id

    @property
    def using(self) -> str:
        """The alias of the database that it was read from."""
        return self._state.db or get_settings().DATABASE

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs in the order of their steps."""
        return Job.objects.using(self.using).of_chain(self)

    def refresh(self) -> Self:
        """Read the chain again. Raises ``ChainNotFound`` if it has been deleted."""
        self.refresh_from_db()
        return self

    def result(self, timeout: timedelta | float | None) -> OutputT_co:
        """Wait until the chain has ended, and return its output; see ``chains.wait``."""
        output: OutputT_co = wait(self, timeout, using=self.using)
        return output

    async def aresult(self, timeout: timedelta | float | None) -> OutputT_co:  # noqa: ASYNC109
        """The async twin of ``result``; see ``chains.await_chain``."""
        output: OutputT_co = await await_chain(self, timeout, using=self.using)
        return output

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: "models.QuerySet[Chain] | None" = None,
    ) -> None:
        """Read all missing fields together, so that status, output and current job belong to the same moment."""
        if fields is None:
            names = {field.attname for field in self._meta.concrete_fields}
        else:
            names = {*self.get_deferred_fields(), *fields}
        if from_queryset is None:
            from_queryset = self._of_last_job(Chain.objects.using(using or self.using), self.id)
            if not names & {"current_job", "current_job_id"}:
                from_queryset = from_queryset.select_related(None)
        try:
            super().refresh_from_db(using=using, fields=names, from_queryset=from_queryset)
        except Chain.DoesNotExist as error:
            raise ChainNotFound(self.id) from error


class KeyLock(models.Model):
    """A lock for a deduplication key on PostgreSQL. A row has no other meaning, and may be deleted unless it is locked.

    A transaction that enqueues with a key inserts or locks its row. SQLite has one writer at a time, and no rows here.
    See docs/decisions/0027-key-rows.md.
    """

    #: ``deduplication.lock_id`` of the chain type and the key.
    id = models.BigIntegerField(primary_key=True)
    #: When a chain was last created for the key. A transaction with an older snapshot fails when it locks the row.
    used_at = models.DateTimeField()

    objects = JobTablesQuerySet.as_manager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        indexes = (models.Index(fields=["used_at"], name="jobchains_key_used"),)

    def __str__(self) -> str:
        return str(self.id)
