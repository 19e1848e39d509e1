"""The two classes that are registered, put together from their parts."""

from django_jobchains.admin.base import ReadOnlyAdmin


class ChainAdmin(ReadOnlyAdmin):
    pass


class JobAdmin(ReadOnlyAdmin):
    pass
