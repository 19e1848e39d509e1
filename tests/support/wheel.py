"""Check the distributions in ``dist``: their files, and that an environment with only the wheel and Django does a job.

``python -m tests.support.wheel contents`` reads the files; with ``job``, the Python of that environment runs a job.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

DIST = Path(__file__).resolve().parents[2] / "dist"

MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""

SETTINGS = """
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "not-a-secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_jobchains", "parcels"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
"""

JOBS = """
from typing import Any

from django.conf import settings

from django_jobchains.processors import Processors, RunningJob

processors = Processors()


@processors.register("parcels.label")
def label(job: RunningJob[Any]) -> None:
    with (settings.BASE_DIR / "label.txt").open("a") as file:
        file.write(job.input["text"])


@processors.register("parcels.pack", continues_with=["parcels.label"])
def pack(job: RunningJob[Any]) -> Any:
    with job.complete():
        return job.continue_with(label, {"text": "parcel " + job.input["text"]})
"""

ENQUEUE = "from parcels.jobs import pack; pack.enqueue({'text': '7'})"


def check_contents() -> None:
    names = zipfile.ZipFile(next(DIST.glob("*.whl"))).namelist()
    if foreign := [name for name in names if not name.startswith(("django_jobchains/", "django_jobchains-"))]:
        sys.exit(f"The wheel has files that are not the package's: {foreign}")
    expect(names, "django_jobchains/py.typed", "django_jobchains/migrations/0001_initial.py")
    expect(names, *(f"django_jobchains/locale/de/LC_MESSAGES/django.{kind}" for kind in ("po", "mo")))
    with tarfile.open(next(DIST.glob("*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    expect(names, "pyproject.toml", "LICENSE", "README.md", "tests/settings.py", "django_jobchains/py.typed")


def expect(names: list[str], *wanted: str) -> None:
    if missing := set(wanted) - set(names):
        sys.exit(f"The build lacks {sorted(missing)}.")


def check_job() -> None:
    with tempfile.TemporaryDirectory(prefix="jobchains-") as name:
        project = write_project(Path(name) / "project")
        manage(project, "check", "--fail-level", "WARNING")
        manage(project, "migrate", "--verbosity", "0")
        manage(project, "shell", "--verbosity", "0", "--command", ENQUEUE)
        manage(project, "run_jobworker", "--burst")
        label = project / "label.txt"
        if not label.exists() or label.read_text() != "parcel 7":
            sys.exit("The worker ended, but the chain's second job left no label.")


def manage(project: Path, *command: str) -> None:
    """Run a command in the project's folder, isolated from the repository."""
    subprocess.run([sys.executable, "-W", "error", "manage.py", *command], cwd=project, check=True)


def write_project(project: Path) -> Path:
    app = project / "parcels"
    app.mkdir(parents=True)
    (project / "manage.py").write_text(MANAGE)
    (project / "settings.py").write_text(SETTINGS)
    (app / "__init__.py").touch()
    (app / "jobs.py").write_text(JOBS)
    return project


if __name__ == "__main__":
    {"contents": check_contents, "job": check_job}[sys.argv[1]]()
