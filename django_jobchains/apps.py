from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_jobchains.processors import Registry


class JobchainsConfig(AppConfig):
    name = "django_jobchains"
    label = "django_jobchains"
    verbose_name = _("Job chains")
    default_auto_field = "django.db.models.BigAutoField"
    #: The job types and processors of the project, found in the apps' ``jobs`` modules.
    registry: "Registry"

    def ready(self) -> None:
        from django_jobchains import checks  # noqa: F401 - registers them
        from django_jobchains.chain_view import create_if_missing
        from django_jobchains.processors import Registry

        self.registry = Registry()
        self.registry.autodiscover()
        post_migrate.connect(create_if_missing, sender=self)
