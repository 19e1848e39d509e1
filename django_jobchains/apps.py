from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate
from django.utils.module_loading import import_string
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
        from django_jobchains.monitoring.gauges import measurements
        from django_jobchains.payloads import codecs
        from django_jobchains.records import checks as record_checks  # noqa: F401
        from django_jobchains.store.task_names import forget_names
        from django_jobchains.telemetry import codec_failed, probes

        probes.measure, codecs.on_failure = measurements, codec_failed
        self.registry = Registry()
        self.registry.autodiscover()
        import_task_backends()
        post_migrate.connect(create_if_missing, sender=self)
        post_migrate.connect(forget_names, sender=self)


def import_task_backends() -> None:
    """Import the backends in ``TASKS``, because our backend registers how to find tasks."""
    for params in getattr(settings, "TASKS", {}).values():
        path = params.get("BACKEND", "")
        try:
            import_string(path)
        except ImportError:  # Django reports it when the backend is used.
            if path.startswith("django_jobchains."):
                raise
