"""Settings package. Falls back to the checkout's ``django_jobchains`` if none is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
