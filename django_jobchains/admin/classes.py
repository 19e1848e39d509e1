"""The two classes that are registered, put together from their parts."""

from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.dashboard import Dashboards


class ChainAdmin(ReadOnlyAdmin):
    pass


class JobAdmin(Dashboards):
    pass
