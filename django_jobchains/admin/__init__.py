"""The admin of chains, jobs and schedules: lists, pages, actions and the dashboard.

To customize it, unregister one of these classes and register a subclass. ``JobRecordAdmin`` is a mixin for the admin
classes of models with records.
"""

from django.contrib import admin

from django_jobchains.admin.actions.enqueue import EnqueueAdmin
from django_jobchains.admin.actions.row_actions import JobActionAdmin
from django_jobchains.admin.dashboard.access import DashboardAccess
from django_jobchains.admin.dashboard.views import DashboardPages
from django_jobchains.admin.database_site import DatabaseSite
from django_jobchains.admin.detail.views import ChainDetailAdmin, JobDetailAdmin
from django_jobchains.admin.limit_admin import LimitAdmin
from django_jobchains.admin.lists.changelists import ChainListAdmin, JobListAdmin
from django_jobchains.admin.record_admin import JobRecordAdmin
from django_jobchains.admin.schedule_form import ScheduleFormAdmin
from django_jobchains.models import Chain, Dashboard, Job, LimitOverride, Schedule

__all__ = ("ChainAdmin", "DashboardAdmin", "DatabaseSite", "JobAdmin", "JobRecordAdmin", "LimitAdmin", "ScheduleAdmin")


@admin.register(Chain)
class ChainAdmin(EnqueueAdmin, ChainDetailAdmin, ChainListAdmin):
    """The admin class of chains."""


@admin.register(Job)
class JobAdmin(JobActionAdmin, DashboardAccess, JobDetailAdmin, JobListAdmin):
    """The admin class of jobs, which also decides what the dashboard shows."""


@admin.register(Dashboard)
class DashboardAdmin(DashboardPages):
    """The entry of the dashboard in the lists of models, and its pages."""


@admin.register(Schedule)
class ScheduleAdmin(ScheduleFormAdmin):
    """The admin class of schedules."""


admin.site.register(LimitOverride, LimitAdmin)
