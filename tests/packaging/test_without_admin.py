"""The package works in a project without Django's admin."""

import subprocess
import sys

USE_WITHOUT_ADMIN = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_jobchains"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)
django.setup()

from django.core.management import call_command
from django.template import engines

call_command("check")
assert engines["django"].from_string("{{ 1 }}").render({}) == "1"
"""


def test_templates_render_without_the_admin() -> None:
    subprocess.run([sys.executable, "-c", USE_WITHOUT_ADMIN], check=True, capture_output=True, text=True)
