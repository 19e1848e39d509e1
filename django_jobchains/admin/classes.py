"""The two classes that are registered, put together from their parts."""

from django_jobchains.admin.dashboard import Dashboards
from django_jobchains.admin.lists import ChainList, JobList


class ChainAdmin(ChainList):
    pass


class JobAdmin(Dashboards, JobList):
    pass
