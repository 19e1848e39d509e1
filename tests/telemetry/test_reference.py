"""The telemetry reference lists every name in the code."""

from django_jobchains.telemetry import names
from tests.telemetry.reference import ATTRIBUTES, FILE, page


def test_the_reference_is_what_the_code_says():
    assert FILE.read_text() == page(), "update it with python -m tests.telemetry.reference"


def test_every_attribute_is_described():
    constants = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert constants - {names.SYSTEM, names.SCOPE} == ATTRIBUTES.keys()
