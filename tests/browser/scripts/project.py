"""Sets up the example project for a script. Import it first."""

import json

import django

django.setup()


def answer(value):
    print(json.dumps(value))
