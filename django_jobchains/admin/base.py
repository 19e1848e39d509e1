"""What all classes share: the database, and that rows are changed by actions alone."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from django_jobchains.admin.visibility import Visibility, has_own_view_permission, is_whole
from django_jobchains.conf import get_settings
from django_jobchains.models import Chain, Job


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # takes no parameter at run time
    """Rows of the database that holds the jobs. Only the store writes them: there are no forms of Django's for them."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def may(self, request: HttpRequest, permission: str, obj: Model | None = None) -> bool:
        """Return whether the user has one of our permissions, such as ``retry_job``.

        It is asked once without a row and then for each row, so that a subclass can decide by the row: a chain, a job,
        or for ``change_queuestate`` a ``QueueState``, which need not be stored.
        """
        return bool(request.user.has_perm(f"django_jobchains.{permission}"))

    def decides_by_row(self) -> bool:
        """Return whether ``may`` may give another answer for each row."""
        return type(self).may is not ReadOnlyAdmin.may

    def sees_all_rows(self, request: HttpRequest) -> bool:
        """Return whether no row of this class is hidden from the user.

        A class that overrides ``has_view_permission`` is taken to hide rows. If yours does not, or not from this user,
        override this method too.
        """
        return not has_own_view_permission(self) and is_whole(self.get_queryset(request))

    def visibility(self, request: HttpRequest) -> Visibility:
        """Return what decides which rows and payloads the pages show to this user."""
        return Visibility(request, self)

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Any]:
        """What the user may do about a chain, or this job of it, now."""
        return ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(get_settings().DATABASE)

    class Media:
        css = {"all": [f"django_jobchains/{name}.css" for name in ("admin", "lists", "pages", "acting")]}
