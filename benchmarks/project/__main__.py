"""``python -m benchmarks.project run_jobworker …``: the project's manage.py."""

import os
import sys
import time

import django
from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")
django.setup()
os.environ["BENCH_SET_UP"] = str(time.time())
execute_from_command_line(sys.argv)
