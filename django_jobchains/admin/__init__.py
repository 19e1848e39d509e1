"""The pages of the Django admin: lists of chains and jobs, what is to be known of one, and what may be done about it.

A project that wants them otherwise unregisters a class here and registers its own subclass.
"""

from django.contrib import admin

from django_jobchains.admin.classes import ChainAdmin, JobAdmin
from django_jobchains.models import Chain, Job

__all__ = ("ChainAdmin", "JobAdmin")

admin.site.register(Chain, ChainAdmin)
admin.site.register(Job, JobAdmin)
