"""The two classes that are registered, put together from their parts."""

from django_jobchains.admin.acting import ActingOnJobs
from django_jobchains.admin.enqueueing import Enqueueing


class ChainAdmin(Enqueueing):
    pass


class JobAdmin(ActingOnJobs):
    pass
