"""The steps of "From a status column to records", run exactly as on the page, in a separate project."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "jobs-or-records.md"
SETTINGS = """
from tests.settings import *

INSTALLED_APPS = [name for name in INSTALLED_APPS if not name.startswith("tests.")] + ["uploads"]
ROOT_URLCONF, MIGRATION_MODULES = "", {}
DATABASES = {"default": {**sqlite(), "NAME": "uploads.sqlite3"}}
"""
CONVERT = "def convert(upload):\n    return upload.path.upper()\n"
#: Creates a row in each status, as the loop of the page may have left them.
ROWS = """
from uploads.models import Upload
for status in ("new", "working", "done", "error", "uploading"):
    Upload.objects.create(path=status, status=status, error="no such file" if status == "error" else "")
"""
SHOW = """
from uploads.models import Upload
for row in Upload.objects.order_by("pk"):
    print(row.path, row.state, row.failure_message or "-", row.queued_at.year > 2000)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def blocks():
    """Return the code of the page by the file that its first line names."""
    found = re.findall(
        r"^```python\n# (uploads/\S+?)(, before)?\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    return {f"{name}{before}": code for name, before, code in found}


class Project:
    def __init__(self, folder):
        self.folder = folder
        self.write("settings.py", SETTINGS)
        self.write("uploads/__init__.py", "")
        self.write("uploads/convert.py", CONVERT)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def manage(self, *words):
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "django", *words]
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_the_steps_lose_no_row_and_process_none_twice(tmp_path):
    code, project = blocks(), Project(tmp_path)
    project.write("uploads/models.py", code["uploads/models.py, before"])
    project.manage("makemigrations", "uploads")
    project.manage("migrate")
    project.manage("shell", "-c", ROWS)
    project.write("uploads/models.py", code["uploads/models.py"])
    project.manage("makemigrations", "uploads", "--name", "records")
    project.write("uploads/migrations/0003_states.py", code["uploads/migrations/0003_states.py"])
    project.manage("migrate")
    project.manage("makemigrations", "--check")
    project.write("uploads/jobs.py", code["uploads/jobs.py"])
    project.manage("check")
    project.manage("run_jobworker", "--burst")
    assert project.manage("shell", "-v", "0", "-c", SHOW).splitlines() == [
        "NEW completed - True",
        "WORKING completed - True",
        "done completed - True",
        "error failed no such file True",
        "uploading uploading - True",
    ]
