"""Creates tables and users with permissions, and prints their sessions, so that tests need not log in."""

from importlib import import_module

from tests.browser.scripts.project import answer  # isort: split

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Permission, User
from django.core.management import call_command

#: The permissions of staff. "root" has all of them.
STAFF = {
    "viewer": ("view_chain", "view_job"),
    "clerk": ("view_chain", "view_job", "view_payload", "retry_job"),
}


def session_of(user):
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return str(session.session_key)


def employ(name, *codenames):
    user = User.objects.create_user(name, is_staff=True)
    permissions = Permission.objects.filter(content_type__app_label="django_jobchains", codename__in=codenames)
    assert len(permissions) == len(codenames), f"Unknown among {codenames}."
    user.user_permissions.set(permissions)
    return user


call_command("migrate", verbosity=0)
people = {"root": User.objects.create_superuser("root", password="a long tea leaf")}
people |= {name: employ(name, *codenames) for name, codenames in STAFF.items()}
answer((settings.SESSION_COOKIE_NAME, {name: session_of(user) for name, user in people.items()}))
