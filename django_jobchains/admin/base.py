"""What all classes share: the database, and that rows are changed by actions alone."""

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

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
        """Whether the user has this permission of ours, ``retry_job`` say; a subclass may look at the row too."""
        return bool(request.user.has_perm(f"django_jobchains.{permission}"))

    def actions_for(self, request: HttpRequest, chain: Chain, job: Job) -> Sequence[Any]:
        """What the user may do about a chain, or this job of it, now."""
        return ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).using(get_settings().DATABASE)

    class Media:
        css = {"all": [f"django_jobchains/{name}.css" for name in ("admin", "lists", "pages", "acting")]}
