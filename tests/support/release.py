"""Steps of ``make release``: ``python -m tests.support.release check``, and the others at the end of this file."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

from tests.support.wheel import DIST, MANAGE, SETTINGS

ROOT = Path(__file__).resolve().parents[2]

#: What the README's example uses without showing it.
MODELS = """
from django.db import models


class Order(models.Model):
    reference = models.CharField(max_length=100, default="")

    class Meta:
        app_label = "shop"

    def mark_paid(self, reference):
        self.reference = reference
        self.save()
"""
AROUND_JOBS = """
from types import SimpleNamespace

from shop.models import Order

gateway = SimpleNamespace(charge=lambda order, idempotency_key: "paid " + idempotency_key)


def mail_receipt(receipt):
    print("mailed", receipt.reference)


"""
VIEW = """
from django.db import transaction

from shop.jobs import Charge, charge
from shop.models import Order

"""


def check() -> None:
    """Stop unless this commit can be released."""
    version = read_version()
    if not os.environ.get("REPOSITORY", "").startswith("https://"):
        sys.exit("Set REPOSITORY to the address of the public repository: make release REPOSITORY=https://…")
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        sys.exit("The working tree has changes. Commit them first.")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    ):
        sys.exit(f"CHANGELOG.md has no section for this version: ## [{version}] - YYYY-MM-DD")


def read_version() -> str:
    (version,) = re.findall(
        r'^__version__ = "(.*)"$', (ROOT / "django_jobchains" / "__init__.py").read_text(), re.MULTILINE
    )
    return str(version)


def check_metadata() -> None:
    """Stop unless the wheel has the version and the addresses of the project."""
    wheel = ZipFile(next(DIST.glob("*.whl")))
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == read_version(), metadata["Version"]
    labels = {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert labels == {"Documentation", "Source", "Issues", "Changelog"}, labels
    relative = re.findall(r"\]\((?!https://|#)[^)]*", str(metadata.get_payload()))
    assert not relative, f"A package index cannot follow these links of the README: {relative}"


def run_readme() -> None:
    """Run the README's example in an empty project, with the Python that runs this."""
    pattern = re.compile(r"^```python\n# (shop/\w+\.py)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    examples = dict(pattern.findall((ROOT / "README.md").read_text()))
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "manage.py").write_text(MANAGE)
        (project / "settings.py").write_text(SETTINGS.replace('"parcels"', '"shop"'))
        (project / "shop").mkdir()
        (project / "shop" / "__init__.py").touch()
        (project / "shop" / "models.py").write_text(MODELS)
        (project / "shop" / "jobs.py").write_text(AROUND_JOBS + examples["shop/jobs.py"])
        (project / "view.py").write_text(VIEW + examples["shop/views.py"].replace("create(...)", "create()"))
        manage(project, "migrate", "--run-syncdb", "--verbosity", "0")
        manage(project, "shell", "--command", "import view")
        shown = manage(project, "run_jobworker", "--burst")
        assert "mailed paid " in shown, shown
        print(manage(project, "jobchains", "list"))


def manage(project: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=project, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def clean_bill() -> None:
    """Remove from the bill of materials what belongs to this machine: its paths, and the tools of the environment."""
    path = DIST / "sbom.cdx.json"
    bill = json.loads(path.read_text())
    tools = {component["bom-ref"] for component in bill["components"] if component["name"] in ("pip", "setuptools")}
    bill["components"] = [component for component in bill["components"] if component["bom-ref"] not in tools]
    bill["dependencies"] = [entry for entry in bill["dependencies"] if entry["ref"] not in tools]
    for component in bill["components"]:
        references = component.get("externalReferences", [])
        references[:] = [entry for entry in references if not entry["url"].startswith("file:")]
    path.write_text(json.dumps(bill, indent=2) + "\n")


def write_checksums() -> None:
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    steps = {"check": check, "metadata": check_metadata, "readme": run_readme, "bill": clean_bill}
    {**steps, "checksums": write_checksums}[sys.argv[1]]()
