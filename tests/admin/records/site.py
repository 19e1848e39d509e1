"""An admin site with models of records, beside chains and jobs, and rows of them.

One model inherits the columns, one hides rows, and the columns of one have other names.
"""

from django.contrib import admin
from django.urls import path

from django_jobchains.admin import ChainAdmin, DashboardAdmin, JobAdmin, JobRecordAdmin, LimitAdmin, ScheduleAdmin
from django_jobchains.models import Chain, Dashboard, Job, LimitOverride, Schedule
from django_jobchains.records.operations import record_types_of
from tests.records.models import Export, Letter, Upload

STATES = ("queued", "processing", "completed", "errored", "failed", "cancelled", "uploading")
#: For each action: the states that it changes, and the new states.
MOVES = {
    "retry": dict.fromkeys(("failed", "errored", "cancelled"), "queued"),
    "requeue": dict.fromkeys(("failed", "errored", "cancelled", "processing"), "queued"),
    "cancel": {"queued": "cancelled", "errored": "cancelled", "processing": "processing"},
}


class UploadAdmin(JobRecordAdmin, admin.ModelAdmin):
    list_filter = (*JobRecordAdmin.list_filter, "repository")
    actions = ("touch",)

    @admin.action(description="A custom action")
    def touch(self, request, queryset):
        raise NotImplementedError


class ExportAdmin(JobRecordAdmin, admin.ModelAdmin):
    """Hides rows by its queryset and by permission."""

    def get_queryset(self, request):
        return super().get_queryset(request).exclude(name="excluded")

    def has_view_permission(self, request, obj=None):
        return super().has_view_permission(request, obj) and (obj is None or obj.name != "hidden")

    def has_cancel_permission(self, request, obj=None):
        return super().has_cancel_permission(request, obj) and (obj is None or obj.name != "precious")


class LetterAdmin(JobRecordAdmin, admin.ModelAdmin):
    fieldsets = ((None, {"fields": ("code", ("status", "error"), "logs", "host")}),)
    readonly_fields = ("code",)


class Site(admin.AdminSite):
    def check(self, app_configs):
        """Return no problems: only tests register the record workers of these models."""
        return []


site = Site()
site.register(Upload, UploadAdmin)
site.register(Export, ExportAdmin)
site.register(Letter, LetterAdmin)
site.register(Chain, ChainAdmin)
site.register(Job, JobAdmin)
site.register(Dashboard, DashboardAdmin)
site.register(Schedule, ScheduleAdmin)
site.register(LimitOverride, LimitAdmin)

urlpatterns = [path("admin/", site.urls)]


def put(model=Upload, state="failed", **values):
    """Create a record with these values, given by the names of our columns."""
    columns = record_types_of(model)[0].columns
    given = {"state": state, **values}
    record = model.objects.create(**{columns.get(name, name): value for name, value in given.items()})
    record.refresh_from_db()
    return record


def state_of(record):
    record.refresh_from_db()
    return record_types_of(type(record))[0].value(record, "state")
