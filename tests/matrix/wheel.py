"""The built wheel does a job in an environment with nothing but Django beside it."""

import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.matrix import ROOT, Failed
from tests.matrix.commands import output, run

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


def check() -> None:
    with tempfile.TemporaryDirectory(prefix="jobchains-") as name:
        folder = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist"))
        check_sdist(next((folder / "dist").glob("*.tar.gz")))
        wheel = next((folder / "dist").glob("*.whl"))
        check_contents(wheel)
        check_job(wheel, folder)
        publish(folder / "dist")


def check_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    if strangers := [name for name in names if not name.startswith(("django_jobchains/", "django_jobchains-"))]:
        raise Failed(f"The wheel has files of others: {strangers}")
    expect(names, "django_jobchains/py.typed", "django_jobchains/migrations/0001_initial.py")
    expect(names, *(f"django_jobchains/locale/de/LC_MESSAGES/django.{kind}" for kind in ("po", "mo")))


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    expect(names, "pyproject.toml", "LICENSE", "README.md", "tests/settings.py", "django_jobchains/py.typed")


def expect(names: list[str], *wanted: str) -> None:
    if missing := set(wanted) - set(names):
        raise Failed(f"The build lacks {sorted(missing)}.")


def check_job(wheel: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", str(folder / "venv"))
    python = str(folder / "venv" / "bin" / "python")
    run(python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", str(wheel))
    project = write_project(folder / "project")
    manage = (python, "-W", "error", "manage.py")
    run(*manage, "check", "--fail-level", "WARNING", cwd=project)
    run(*manage, "migrate", "--verbosity", "0", cwd=project)
    run(*manage, "shell", "--verbosity", "0", "--command", ENQUEUE, cwd=project)
    run(*manage, "run_jobworker", "--burst", cwd=project)
    label = project / "label.txt"
    if not label.exists() or label.read_text() != "parcel 7":
        raise Failed("The worker ended, but the chain's second job left no label.")


def write_project(project: Path) -> Path:
    app = project / "parcels"
    app.mkdir(parents=True)
    (project / "manage.py").write_text(MANAGE)
    (project / "settings.py").write_text(SETTINGS)
    (app / "__init__.py").touch()
    (app / "jobs.py").write_text(JOBS)
    return project


def publish(built: Path) -> None:
    """Into dist/, where a maintainer finds what was just checked."""
    shutil.copytree(built, ROOT / "dist", dirs_exist_ok=True)
    output.say(f"Built: {' '.join(sorted(path.name for path in built.iterdir()))}")
