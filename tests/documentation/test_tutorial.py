"""The tutorial works: its files are written, its commands are run, and the output is the one that it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.waiting import until

TUTORIAL = Path(__file__).parents[2] / "docs" / "start" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
#: Runs what stands in the shell as a doctest.
RUN_SESSION = """
import doctest, sys
import django
django.setup()
test = doctest.DocTestParser().get_doctest(sys.stdin.read(), {}, "tutorial", None, 0)
sys.exit(doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed)
"""
#: What the reader does in the admin: opens the page *Complete* of the waiting job, and sends its form.
APPROVE = dedent("""
    >>> from django.conf import settings
    >>> from django.contrib.auth.models import User
    >>> from django.test import Client
    >>> from django.urls import reverse
    >>> settings.ALLOWED_HOSTS = ["testserver"]
    >>> client = Client()
    >>> client.force_login(User.objects.get(username="baker"))
    >>> waiting = question.current_job
    >>> listed = client.get("/admin/django_jobchains/job/?status=pending")
    >>> str(waiting.pk) in listed.content.decode()
    True
    >>> address = reverse("admin:django_jobchains_job_complete", args=[waiting.pk])
    >>> 'name="payload"' in client.get(address).content.decode()
    True
    >>> client.post(address, {"job": [waiting.pk], "payload": "true"}).status_code
    302
""")


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path) -> None:
    project = Project(tmp_path)
    try:
        for kind, text in BLOCK.findall(TUTORIAL.read_text()):
            project.do(kind, text)
        project.finish_session()
    finally:
        project.stop_worker()


class Project:
    """The project of the tutorial, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "JOBCHAINS_"))
        }
        self.environment = {**inherited, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        self.worker: subprocess.Popen[str] | None = None
        #: What stands in the shell that is open, and what the worker has to show.
        self.session: list[str] = []
        self.shown: list[str] = []

    def do(self, kind: str, text: str) -> None:
        if kind == "python":
            name, _, code = text.removeprefix("# ").partition("\n")
            with (self.folder / name).open("a") as file:
                file.write(f"\n\n{code}")
        elif kind == "text":
            self.shown.append(text)
        else:
            for command in re.findall(r"^\$ (.*)$", text, re.MULTILINE):
                self.command(command)
            examples = re.sub(r"^\$ .*\n", "", text, flags=re.MULTILINE)
            self.session += [APPROVE] * (">>> delivery.result(" in examples) + [examples.replace("…", "...")]

    def command(self, command: str) -> None:
        program, *words = command.split()
        if "run_jobworker" in words:
            with (self.folder / "worker.log").open("w") as log:
                self.worker = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, **self.place)
            until(lambda: "Worker " in self.log, 60, lambda: self.log)
        elif command == "python manage.py shell":
            self.finish_session()
        elif program == "django-admin":
            self.run("-m", "django", *words)
        elif "createsuperuser" in words:
            self.run(*words, "--noinput", DJANGO_SUPERUSER_PASSWORD="flour")
        elif "pip" not in words:
            self.run(*words)

    def finish_session(self) -> None:
        """Run what stands in the shell, and wait until the worker has shown what it has to show."""
        session, self.session = "\n".join(self.session), []
        if session.strip():
            self.run("-c", RUN_SESSION, text_in=session, DJANGO_SETTINGS_MODULE="bakery.settings")
        lines = [".*".join(map(re.escape, line.split("…"))) for line in "".join(self.shown).splitlines()]
        pattern = "[^\0]*\n".join(lines)
        until(lambda: re.search(pattern, self.log) is not None, 30, lambda: self.log)
        self.shown = []

    def run(self, *words: str, text_in: str = "", **environment: str) -> None:
        place = {**self.place, "env": {**self.environment, **environment}}
        done = subprocess.run([sys.executable, *words], input=text_in, capture_output=True, text=True, **place)
        assert done.returncode == 0, done.stdout + done.stderr + self.log

    @property
    def place(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": self.environment}

    @property
    def log(self) -> str:
        file = self.folder / "worker.log"
        return file.read_text() if file.exists() else ""

    def stop_worker(self) -> None:
        if self.worker is not None:
            self.worker.terminate()
            self.worker.wait(30)
