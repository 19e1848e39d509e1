"""An admin site with record models: one that inherits the columns, and one whose columns have other names."""

from django.contrib import admin
from django.urls import path

from django_jobchains.admin import ChainAdmin, JobAdmin, JobRecordAdmin
from django_jobchains.models import Chain, Job
from tests.records.models import Export, Letter, Upload


class UploadAdmin(JobRecordAdmin, admin.ModelAdmin):
    list_filter = (*JobRecordAdmin.list_filter, "repository")
    actions = ("touch",)

    @admin.action(description="A custom action")
    def touch(self, request: object, queryset: object) -> None:
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

urlpatterns = [path("admin/", site.urls)]
