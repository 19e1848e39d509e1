"""The admin, and a site for the second database."""

from django.urls import path

from django_jobchains.admin import DatabaseSite
from tests import urls
from tests.several_databases.conftest import OTHER

urlpatterns = [*urls.urlpatterns, path("other/", DatabaseSite(OTHER).urls)]
