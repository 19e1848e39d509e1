"""``jobs`` modules are imported when the apps are ready; an AppConfig may name other modules."""

import pytest
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_jobchains.processors import Registry, get_registry

HERE = "tests.processors.apps"


def installed(*names):
    return override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, *(f"{HERE}.{name}" for name in names)])


def names(registry):
    return [name for name in sorted(registry.job_types()) if name.startswith(("plain.", "listed."))]


def test_the_jobs_module_of_an_app_is_imported_when_the_apps_are_ready():
    assert names(get_registry()) == []
    with installed("plain"):
        registry = apps.get_app_config("django_jobchains").registry
        assert names(registry) == ["plain.approval", "plain.charge"]
        assert registry.processor("plain.charge")
    assert names(get_registry()) == []


def test_the_order_of_the_apps_does_not_matter():
    first = [f"{HERE}.plain", *settings.INSTALLED_APPS]
    with override_settings(INSTALLED_APPS=first):
        assert names(get_registry()) == ["plain.approval", "plain.charge"]


def test_an_app_may_list_modules_by_relative_or_full_name():
    with installed("listed"):
        assert {"listed.work", "listed.bill"} <= set(names(get_registry()))


def test_an_object_in_two_modules_counts_once():
    with installed("plain", "listed"):
        registry = get_registry()
        assert names(registry) == ["listed.bill", "listed.work", "plain.approval", "plain.charge"]
        assert sum(processor.job_type.name == "plain.charge" for processor in registry.processors()) == 1


def test_an_app_needs_no_jobs_module():
    with installed("quiet"):
        assert names(get_registry()) == []


def test_a_jobs_module_that_cannot_be_imported_is_an_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), installed("broken"):
        pass


def test_a_listed_module_that_is_missing_is_an_error(monkeypatch):
    with installed("quiet"):
        config = apps.get_app_config("quiet")
        monkeypatch.setattr(config, "jobchains_modules", [f"{HERE}.quiet.nowhere"], raising=False)
        with pytest.raises(ModuleNotFoundError, match="nowhere"):
            Registry().autodiscover()


def test_the_error_of_a_listed_module_names_the_app(monkeypatch):
    with installed("quiet"):
        config = apps.get_app_config("quiet")
        monkeypatch.setattr(config, "jobchains_modules", ["mial"], raising=False)
        with pytest.raises(ModuleNotFoundError, match="'mial'") as caught:
            Registry().autodiscover()
    [note] = caught.value.__notes__
    assert note == f"The module 'mial' is in the jobchains_modules of the app {HERE}.quiet."


def test_a_single_name_instead_of_a_list_is_an_error(monkeypatch):
    with installed("quiet"):
        monkeypatch.setattr(apps.get_app_config("quiet"), "jobchains_modules", "quiet.jobs", raising=False)
        with pytest.raises(ImproperlyConfigured, match=r"jobchains_modules is a list of names, .* \['quiet\.jobs'\]"):
            Registry().autodiscover()
