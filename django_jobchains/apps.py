from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_jobchains.declare.registry import Registry


class JobchainsConfig(AppConfig):
    name = "django_jobchains"
    label = "django_jobchains"
    verbose_name = _("Job chains")
    default_auto_field = "django.db.models.BigAutoField"
    #: The job types and processors of the project, from the ``jobs`` modules of its apps.
    registry: "Registry"

    def ready(self) -> None:
        from django_jobchains.declare import checks  # noqa: F401 - registers the checks
        from django_jobchains.declare.registry import Registry
        from django_jobchains.models.chain_view import create_if_missing
        from django_jobchains.monitoring.facts import measurements
        from django_jobchains.payloads import codecs
        from django_jobchains.records import checks as record_checks  # noqa: F401
        from django_jobchains.telemetry import codec_failed, probes

        probes.measure, codecs.on_failure = measurements, codec_failed
        self.registry = Registry()
        self.registry.autodiscover()
        post_migrate.connect(create_if_missing, sender=self)
