"""An admin site for one of several databases with job tables."""

from functools import wraps
from typing import Any

from django.contrib.admin import AdminSite, site
from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.utils.translation import gettext_lazy as _

from django_jobchains.conf import use_database


class DatabaseSite(AdminSite):
    """An admin site whose pages and actions use one database.

    It has the admin classes that are registered on ``admin.site`` when it is created, so create it in your URLconf:
    ``path("admin/shard_1/", DatabaseSite("shard_1").urls)``. ``alias`` is also the name of the site.
    """

    def __init__(self, alias: str) -> None:
        super().__init__(name=alias)
        self.alias = alias
        self.site_header = self.site_title = _("Database %(alias)s") % {"alias": alias}
        for model, model_admin in site._registry.items():
            self.register(model, type(model_admin))

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """Wrap a view, so that it and its templates use the database of this site."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def in_database(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            with use_database(self.alias):
                response = inner(request, *args, **kwargs)
                return response.render() if isinstance(response, SimpleTemplateResponse) else response

        return in_database
