"""``python -m tests.typing.snippets``: mypy checks the Python snippets of the documentation, with strict settings.

A snippet shows a part of a reader's project. It finds the models, types and functions of the rest in
``tests/typing/reader.py``. Snippets of the example project, which name a file in ``shop``, are checked with it, and
those of Celery are not, because Celery has no types.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "snippets"
READER_FILE = Path(__file__).with_name("reader.py")
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

#: What snippets use without an import: names of the package, of Django and of the standard library, and a slice.
PRELUDE = """
import asyncio, dataclasses, json, os, threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import httpx, requests, structlog
from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.auth.forms import UserCreationForm
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.db import connection, models, transaction
from django.db.models import F, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import TestCase
from django.urls import path, reverse
from django.utils import timezone
from django_tasks import task
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable
from rest_framework import serializers
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response

from django_jobchains import *
from django_jobchains import chains, context, monitoring, queues, records, schedules, testing
from django_jobchains.admin import *
from django_jobchains.chains import ChainCancelled, ChainFailed, ChainNotFound, ChainTimeout, JobTypeMismatch
from django_jobchains.middleware import *
from django_jobchains.models import Chain, Job
from django_jobchains.pools import ChildCrashed, ChildTimeout, RemoteError
from django_jobchains.processors import *
from django_jobchains.pytest_plugin import Jobchains
from django_jobchains.records import JobRecord, RecordProcessor, RecordRun
from django_jobchains.store.sqlite import SQLiteJobs
from django_jobchains.worker import Worker

processors: Processors[Any] = Processors()
INSTALLED_APPS: list[Any]
"""
#: Marks lines in which mypy has to find an error.
EXPECTED = "# an error in mypy"
#: The first line of files of the example project, and of code of Celery.
UNCHECKED = re.compile(r"# (shop/\S+|Celery)\n")


def write_modules() -> int:
    """Write each snippet as a module, with its line numbers in the page. Return their number."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "__init__.py").touch()
    (FOLDER / "prelude.py").write_text(PRELUDE)
    count = 0
    folders = [ROOT / "docs" / name for name in ("guides", "start", "operate", "reference")]
    for page in [ROOT / "README.md", *sorted(page for folder in folders for page in folder.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if not UNCHECKED.match(block["code"]):
                before = text.count("\n", 0, block.start("code"))
                name = f"{page.stem.replace('-', '_')}_{before + 1}.py"
                code = block["code"].replace(EXPECTED, f"# type: ignore {EXPECTED}")
                (FOLDER / name).write_text(module(code, before), encoding="utf-8")
                count += 1
    return count


def module(code: str, lines_before: int) -> str:
    """Return a snippet with imports of the names that it does not define. A method gets a class around it."""
    tree, reader = ast.parse(code), names_of(ast.parse(READER_FILE.read_text(encoding="utf-8")))
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    defined = names_of(tree) | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    imports = ", ".join(sorted((used & reader) - defined))
    header = "from snippets.prelude import *" + (f"; from tests.typing.reader import {imports}" if imports else "")
    if re.match(r"(async )?def \w+\(self", code):
        code, lines_before = f"class Snippet:\n{textwrap.indent(code, '    ')}", lines_before - 1
    return header + "\n" * lines_before + code


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports, except by assignments."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names |= {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return names | {alias.asname or alias.name for node in imports for alias in node.names}


def main() -> int:
    count = write_modules()
    # Options for "snippets.*" are in pyproject.toml. With the other ones unchanged, mypy reads what it has found out
    # about Django and the package.
    environment = {**os.environ, "MYPYPATH": str(FOLDER.parent)}
    command = [sys.executable, "-m", "mypy", str(FOLDER)]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    sys.stdout.write(f"Checked {count} snippets. The number in the name of a file is the line of its page.\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
