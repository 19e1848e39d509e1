"""The two classes that are registered, put together from their parts."""

from django_jobchains.admin.detail import ChainDetail, JobDetail


class ChainAdmin(ChainDetail):
    pass


class JobAdmin(JobDetail):
    pass
