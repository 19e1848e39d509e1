"""The example's settings. It runs from a checkout: an installed django_jobchains wins, the one next door fills in."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
