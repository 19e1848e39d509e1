"""A module whose import takes as long as the test wants: while the file that the environment names exists."""

import os
import time
from pathlib import Path

if path := os.environ.get("SLOW_IMPORT"):
    while Path(path).exists():
        Path(f"{path}.begun").touch()
        time.sleep(0.01)


def set_up():
    """Do nothing: the import is enough."""
