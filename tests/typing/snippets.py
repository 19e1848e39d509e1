"""``python -m tests.typing.snippets``: mypy checks the Python snippets of the documentation, with strict settings.

A snippet shows a part of a reader's project. mypy does not know the models, types and functions that it takes from the
rest, and accepts them as ``Any``. So this finds wrong names, arguments and types in the use of this package, of Django
and of the standard library. Snippets of the
example project, which name a file in ``shop``, are checked with it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "snippets"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

#: What snippets use without an import: names of the package, of Django and of the standard library, and a slice.
PRELUDE = """
import asyncio, dataclasses, json, os, threading
from collections.abc import Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx, requests, structlog
from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.db import connection, models, transaction
from django.db.models import F, Q
from django.http import JsonResponse, StreamingHttpResponse
from django.test import TestCase
from django.urls import path, reverse
from django.utils import timezone

from django_jobchains import *
from django_jobchains import chains, context, monitoring, queues, records, schedules, testing
from django_jobchains.admin import *
from django_jobchains.middleware import *
from django_jobchains.models import Chain, Job
from django_jobchains.pools import ChildCrashed, ChildTimeout, RemoteError
from django_jobchains.processors import *
from django_jobchains.records import JobRecord, RecordProcessor, RecordRun

processors: Processors[Any] = Processors()
"""
#: Marks lines in which mypy has to find an error.
EXPECTED = "# an error in mypy"
#: Errors that are due to the unknown parts of a snippet, or to annotations that it leaves out for brevity.
ALLOWED = ("name-defined", "no-untyped-call", "no-untyped-def")
#: What comes from an unknown name is Any. Django's classes are generic only in its stubs.
CONFIG = f"""
[mypy]
strict = True
disallow_any_generics = False
disallow_subclassing_any = False
warn_return_any = False
ignore_missing_imports = True
implicit_reexport = True
follow_imports = silent
plugins = mypy_django_plugin.main
disable_error_code = {", ".join(ALLOWED)}

[mypy.plugins.django-stubs]
django_settings_module = tests.settings
"""


def write_modules() -> int:
    """Write each snippet as a module, with its line numbers in the page. Return their number."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "mypy.ini").write_text(CONFIG)
    (FOLDER / "prelude.py").write_text(PRELUDE)
    count = 0
    folders = [ROOT / "docs" / name for name in ("guides", "start", "operate", "reference")]
    for page in [ROOT / "README.md", *sorted(page for folder in folders for page in folder.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if not block["code"].startswith("# shop/"):
                before = text.count("\n", 0, block.start("code"))
                name = f"{page.stem.replace('-', '_')}_{before + 1}.py"
                code = block["code"].replace(EXPECTED, f"# type: ignore {EXPECTED}")
                (FOLDER / name).write_text("from prelude import *" + "\n" * before + code, encoding="utf-8")
                count += 1
    return count


def main() -> int:
    count = write_modules()
    options = ("--config-file", str(FOLDER / "mypy.ini"), "--cache-dir", ".mypy_cache/snippets")
    command = [sys.executable, "-m", "mypy", *options, str(FOLDER)]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    sys.stdout.write(f"Checked {count} snippets. The number in the name of a file is the line of its page.\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
