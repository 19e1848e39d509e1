"""``manage.py open_shop``, the command that ``make shop`` runs: the shop and its worker, until Ctrl-C."""

import signal
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

STAFF, PASSWORD = "staff", "tea"
STOP_SECONDS = 20

ADDRESSES = """
  Guided tour   http://{address}/tour/
  Shop          http://{address}/
  Admin         http://{address}/admin/   (user {staff}, password {password})
  Worker        http://127.0.0.1:{health}/

Press Ctrl-C to stop the shop and its worker.
"""


class Command(BaseCommand):
    help = "Prepares the database, and runs the web server and a worker together, for development."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("address", nargs="?", default="127.0.0.1:8000", help="address and port of the web server")
        parser.add_argument("--health-port", type=int, default=8010, help="port of the worker's health probes")

    def handle(self, *args: Any, address: str, health_port: int, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("This command creates a user with a known password. It only runs with DEBUG.")
        for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: some programs start others with it ignored.
            signal.signal(number, signal.default_int_handler)
        call_command("migrate", verbosity=0, interactive=False)
        if not User.objects.filter(username=STAFF).exists():
            User.objects.create_superuser(STAFF, password=PASSWORD)
        manage = [sys.executable, str(settings.BASE_DIR / "manage.py")]
        worker = ["run_jobworker", "--processes", "2", "--slots", "4", "--health-port", str(health_port)]
        with subprocess.Popen([*manage, *worker]) as process:
            try:
                self.stdout.write(ADDRESSES.format(address=address, staff=STAFF, password=PASSWORD, health=health_port))
                # In this process, so that Ctrl-C reaches both, and none is left behind.
                call_command("runserver", address, use_reloader=False, skip_checks=True)
            finally:
                # After Ctrl-C, the worker has received the signal too. A second one soon after it counts as its copy.
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
