"""The documentation site: ``make docs`` builds it, with warnings as errors."""

import os
import sys
from pathlib import Path

import django
from django.conf import settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

# The API reference is read from the docstrings, so the modules are imported.
settings.configure(
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django_jobchains"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    USE_TZ=True,
)
django.setup()

import django_jobchains  # noqa: E402

project = "django_jobchains"
author = "The django_jobchains authors"
project_copyright = author
version = release = django_jobchains.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
#: Headings of these levels can be linked to, as on code hosting sites.
myst_heading_anchors = 4
# Examples leave out what is not their point, as in ``Order.objects.create(...)``, or show several files.
suppress_warnings = ["misc.highlighting_failure"]
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path: list[str] = []
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")
# The copied text of a console example contains no prompts.
copybutton_exclude = ".linenos, .gp, .go"
