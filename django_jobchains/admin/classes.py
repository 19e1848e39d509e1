"""The two classes that are registered, put together from their parts."""

from django_jobchains.admin.acting import ActingOnJobs
from django_jobchains.admin.dashboard import Dashboards
from django_jobchains.admin.detail import ChainDetail, JobDetail
from django_jobchains.admin.enqueueing import Enqueueing
from django_jobchains.admin.history import ChainHistory
from django_jobchains.admin.lists import ChainList, JobList


class ChainAdmin(Enqueueing, ChainHistory, ChainDetail, ChainList):
    pass


class JobAdmin(ActingOnJobs, Dashboards, JobDetail, JobList):
    pass
