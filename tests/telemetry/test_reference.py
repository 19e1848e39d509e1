"""The telemetry reference lists every name in the code."""

from tests.telemetry.reference import FILE, page


def test_the_reference_is_what_the_code_says() -> None:
    assert FILE.read_text() == page(), "update it with python -m tests.telemetry.reference"
