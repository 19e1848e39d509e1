"""The settings of the browser tests, with the theme django-unfold, whose templates and styles replace Django's."""

from tests.browser.settings import *  # noqa: F403
from tests.browser.settings import INSTALLED_APPS, MIDDLEWARE

INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
# Its scripts evaluate expressions, which the example's policy forbids.
MIDDLEWARE = [name for name in MIDDLEWARE if name != "config.csp.ContentSecurityPolicy"]
