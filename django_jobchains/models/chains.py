"""Chains: a view of the jobs."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

from django.db import models
from django.db.models import F, OuterRef
from django.db.models.base import ModelState
from django.utils.translation import gettext_lazy as _

from django_jobchains.chain_view import NAME
from django_jobchains.conf import get_settings
from django_jobchains.deduplication import KEY_LENGTH
from django_jobchains.exceptions import ChainNotFound
from django_jobchains.ids import ChainPart, ChainRef, chain_id_of
from django_jobchains.models.jobs import TYPE_NAME_LENGTH, Among, Job, JobBlocker, JobQuerySet, known
from django_jobchains.pages import Orders, PagedQuerySet
from django_jobchains.statuses import OPEN, Status

#: In one statement; SQLite allows 32,766 parameters.
MAX_IDS = 10_000


class ChainQuerySet(PagedQuerySet["Chain"]):
    page_orders: Orders = (("-id",), ("id",))

    def with_status(self, *statuses: str) -> "ChainQuerySet":
        return self._any_of("status", known(statuses))

    def of_type(self, *type_names: str) -> "ChainQuerySet":
        return self._any_of("type_name", type_names)

    def incomplete(self) -> "ChainQuerySet":
        """Chains that may still run: their last job is blocked, pending or running."""
        return self._any_of("status", OPEN)

    def blocked_by(self, chain: ChainRef) -> "ChainQuerySet":
        """Chains with a job that has this chain as a blocker, also when it no longer waits for it."""
        links = JobBlocker.objects.filter(blocker=chain_id_of(chain))
        return self.filter(Among(F("id"), models.Subquery(links.values("job__chain_id"))))

    def update(self, **values: Any) -> NoReturn:
        raise TypeError("Chains are changed by the functions of django_jobchains.chains.")

    def delete(self) -> NoReturn:
        raise TypeError("Use django_jobchains.chains.delete(ids).")

    update.alters_data = delete.alters_data = True  # type: ignore[attr-defined]


class Chain(ChainPart, models.Model):
    """A job and its continuations, seen as one: the input of its first job, the status and output of its last.

    A snapshot: what enqueueing does not know is read when it is first asked for, and ``refresh()`` reads it again.
    ``input`` and ``output`` are the JSON values as stored.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    type_name = models.CharField(_("type"), max_length=TYPE_NAME_LENGTH)
    input = models.JSONField(_("input"), null=True)
    deduplication_key = models.CharField(_("deduplication key"), max_length=KEY_LENGTH, null=True)  # noqa: DJ001
    created_at = models.DateTimeField(_("created at"))
    #: The last job so far.
    current_job = models.ForeignKey(Job, models.DO_NOTHING, related_name="+", verbose_name=_("current job"))
    status = models.CharField(_("status"), max_length=10, choices=Status)
    #: The last job's; None until the chain is completed.
    output = models.JSONField(_("output"), null=True)
    last_error = models.TextField(_("last error"), null=True)  # noqa: DJ001
    finished_at = models.DateTimeField(_("finished at"), null=True)

    #: True when enqueueing returned a chain that existed already.
    deduplicated = False

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
        raise TypeError("A chain is changed by the functions of django_jobchains.chains.")

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Use django_jobchains.chains.delete(chain.id).")

    @classmethod
    def partly_known(cls, using: str, **known: Any) -> "Chain":
        """As ``from_db`` with the other fields deferred, which takes its time over each of them."""
        chain = cls.__new__(cls)
        chain._state = ModelState()
        chain._state.adding, chain._state.db = False, using
        chain.__dict__.update(known)
        return chain

    @classmethod
    def load(cls, chain_id: UUID, using: str) -> "Chain":
        """Reads a chain; raises ``ChainNotFound``."""
        try:
            return cls._of_last_job(cls.objects.using(using).filter(pk=chain_id), chain_id).get()
        except cls.DoesNotExist as error:
            raise ChainNotFound(chain_id) from error

    @staticmethod
    def _of_last_job(chains: ChainQuerySet, chain_id: UUID) -> ChainQuerySet:
        """Found by its last job, and so as fast however many there are; and with it, as it is at the same moment."""
        last = Job.objects.filter(chain_id=chain_id).order_by("-chain_index").values("id")[:1]
        return chains.filter(current_job__in=last).select_related("current_job")

    @classmethod
    def blockers_of(cls, job_ids: Iterable[UUID], using: str) -> "dict[UUID, list[Chain]]":
        """The blockers of jobs, in the order in which they were given.

        A chain is read by its last job, one index probe each: the view would look at every job of a long chain.
        """
        last = Job.objects.filter(chain_id=OuterRef("blocker_id")).order_by("-chain_index").values("id")[:1]
        links = JobBlocker.objects.using(using).filter(job_id__in=job_ids).order_by("job_id", "position")
        rows = list(links.values_list("job_id", "blocker_id", models.Subquery(last)))
        last_ids = list({last_id for _, _, last_id in rows})
        chains: dict[UUID, Chain] = {}
        for start in range(0, len(last_ids), MAX_IDS):
            chains |= cls.objects.using(using).filter(current_job__in=last_ids[start : start + MAX_IDS]).in_bulk()
        blockers: dict[UUID, list[Chain]] = {}
        for job_id, chain_id, _last in rows:  # one that failed may have been retried, and have gone on, in between
            blockers.setdefault(job_id, []).append(chains.get(chain_id) or cls.load(chain_id, using))
        return blockers

    @property
    def chain_id(self) -> UUID:  # type: ignore[override]
        """The same as ``id``, so that chains and jobs can be given alike."""
        return self.id

    @property
    def using(self) -> str:
        """The alias of the database it was read from."""
        return self._state.db or get_settings().DATABASE

    @property
    def jobs(self) -> JobQuerySet:
        """The jobs in the order of their steps."""
        return Job.objects.using(self.using).of_chain(self)

    def refresh(self) -> "Chain":
        """Reads it again; raises ``ChainNotFound`` when it was deleted meanwhile."""
        self.refresh_from_db()
        return self

    def result(self, timeout: timedelta | float | None) -> Any:
        """Waits until it has ended, and returns its output; see ``chains.wait``."""
        from django_jobchains.waiting import wait

        return wait(self.id, timeout, using=self.using)

    async def aresult(self, timeout: timedelta | float | None) -> Any:  # noqa: ASYNC109
        """``result`` for async code; see ``chains.await_chain``."""
        from django_jobchains.waiting import await_chain

        return await await_chain(self.id, timeout, using=self.using)

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: "models.QuerySet[Chain] | None" = None,
    ) -> None:
        """What was not read yet is read together, so that status, output and current job belong to one moment."""
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
