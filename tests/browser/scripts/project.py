"""Sets up the example project for a script. Import it first."""

import json
from typing import Any

import django

django.setup()


def answer(value: Any) -> None:
    print(json.dumps(value))
