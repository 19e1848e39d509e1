"""The configurations of the deployment pages are valid, and start the worker with options that it has."""

import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class
from django.db import connections

from django_jobchains.testing.contracts.concurrency import at_once

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "operate" / "files"


def configured(name: str) -> Any:
    return import_module("yaml").safe_load((FILES / name).read_text())


def resources() -> list[Any]:
    return list(import_module("yaml").safe_load_all((FILES / "kubernetes.yaml").read_text()))


def commands() -> dict[str, list[str]]:
    """Return how each of the files starts a worker."""
    unit, procfile = (FILES / "shop-worker.service").read_text(), (FILES / "Procfile").read_text()
    deployment = next(found for found in resources() if found["kind"] == "Deployment")
    return {
        "systemd": shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]),  # type: ignore[index]
        "compose": configured("compose.yaml")["services"]["worker"]["command"],
        "kubernetes": deployment["spec"]["template"]["spec"]["containers"][0]["command"],
        "procfile": shlex.split(re.search(r"^worker: (.*)$", procfile, re.MULTILINE)[1]),  # type: ignore[index]
    }


@pytest.mark.slow
@pytest.mark.parametrize("where", ["systemd", "compose", "kubernetes", "procfile"])
def test_the_worker_accepts_its_options(where: str) -> None:
    words = commands()[where]
    options = words[words.index("run_jobworker") + 1 :]
    parsed = load_command_class("django_jobchains", "run_jobworker").create_parser("manage.py", "x").parse_args(options)
    assert parsed.shutdown_timeout


@pytest.mark.postgresql
@pytest.mark.usefixtures("transactional_db", "small_pool")
def test_forked_web_processes_inherit_no_connection_of_djangos_pool() -> None:
    page = (ROOT / "docs" / "guides" / "workers.md").read_text()
    hook = re.search(r"^```python\n(def pre_fork.*?)^```", page, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]
    names: dict[str, Any] = {"Any": Any}
    exec(hook, names)

    def prepare_fork() -> Any:
        connection: Any = connections["default"]
        connection.ensure_connection()
        pool = connection.pool
        names["pre_fork"](None, None)
        return pool.closed

    assert at_once([prepare_fork]) == [True]


@pytest.mark.slow
def test_stopping_takes_less_time_than_the_process_manager_allows() -> None:
    unit = (FILES / "shop-worker.service").read_text()
    deployment = next(found for found in resources() if found["kind"] == "Deployment")
    allowed = {
        "systemd": int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]),  # type: ignore[index]
        "compose": int(configured("compose.yaml")["services"]["worker"]["stop_grace_period"].removesuffix("s")),
        "kubernetes": deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        "procfile": 30,
    }
    for where, words in commands().items():
        timeout = int(re.search(r"--shutdown-timeout[ =](\d+)", " ".join(words))[1])  # type: ignore[index]
        assert allowed[where] >= timeout + 10, where


@pytest.mark.slow
def test_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("There is no systemd-analyze: install systemd.")
    unit = tmp_path / "shop-worker.service"
    # It also checks that the program exists.
    unit.write_text(
        (FILES / "shop-worker.service").read_text().replace("/srv/shop/.venv/bin/python", "/usr/bin/env python")
    )
    checked = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert "shop-worker.service" not in checked.stderr, checked.stderr


@pytest.mark.slow
def test_the_compose_file() -> None:
    import_module("compose_spec.models").ComposeSpecification.model_validate(configured("compose.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_manifests(number: int) -> None:
    kubernetes = import_module("kubernetes_validate")
    kubernetes.validate(resources()[number], kubernetes.latest_version(), strict=True)


@pytest.mark.slow
def test_the_scaled_object_names_the_deployment() -> None:
    page = (ROOT / "docs" / "operate" / "kubernetes.md").read_text()
    (example,) = re.findall(r"```yaml\n(apiVersion: keda.*?)```", page, re.DOTALL)
    scaled = import_module("yaml").safe_load(example)
    assert scaled["spec"]["scaleTargetRef"]["name"] in {found["metadata"]["name"] for found in resources()}
