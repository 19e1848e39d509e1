"""``python -m tests.typing.snippets``: mypy checks the Python snippets of the documentation, with strict settings.

A snippet shows a part of a reader's project. mypy does not know the names that it takes from the rest, and accepts them
as ``Any``. So this finds wrong names, arguments and types in the use of this package and of Django. Snippets of the
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

#: What snippets use without an import: names of the package and of the standard library, and a slice.
PRELUDE = """
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from django_jobchains import *
from django_jobchains import chains, context, queues, records, schedules, testing
from django_jobchains.middleware import *
from django_jobchains.processors import *

processors: Processors[Any] = Processors()
"""
#: Marks lines in which mypy has to find an error.
EXPECTED = "# an error in mypy"
#: Errors that are due to the unknown parts of a snippet, or to annotations that it leaves out for brevity.
ALLOWED = (
    "dict-item", "empty-body", "has-type", "import-not-found", "import-untyped", "misc", "name-defined",
    "no-any-return", "no-redef", "no-untyped-call", "no-untyped-def", "untyped-decorator", "used-before-def",
    "var-annotated",
)  # fmt: skip
CONFIG = f"""
[mypy]
strict = True
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
