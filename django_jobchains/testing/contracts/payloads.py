"""JSON values that a database may not read back as they were."""

import json
from typing import Any

JSON_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**53 + 1,
    0.1,
    1e-7,
    "",
    "null",
    "naïve ✓ 😀",
    "' \" \\ % %s {} $1 ?",
    "line\nbreak\ttab",
    [],
    {},
    [1, [2, [None, {"a": []}]]],
    {"": 1, "a b": {"c": [True, False]}},
)


def json_text(value: Any) -> str:
    return json.dumps(value)
