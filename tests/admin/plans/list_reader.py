"""Reads the rows of a list without rendering its page, in a fifth of the time."""

from typing import Any
from urllib.parse import urlsplit

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.urls import resolve

from django_jobchains.models import Chain, Job

ADMINS = {f"{model._meta.app_label}_{model._meta.model_name}_changelist": model for model in (Chain, Job)}


class ListReader:
    """Replaces the client in a visit to a list. ``get`` reads the rows like the page, but renders nothing."""

    def __init__(self, user: User) -> None:
        self._user = user

    def get(self, url: str) -> ChangeList:
        request: Any = RequestFactory().get(url)
        request.user = self._user
        model_admin: Any = admin.site._registry[ADMINS[str(resolve(urlsplit(url).path).url_name)]]
        change_list: ChangeList = model_admin.get_changelist_instance(request)
        return change_list
