"""``manage.py demo``: what ``make demo`` runs."""

import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop.demo.database import demo_database
from shop.demo.orders import place_orders
from shop.demo.outcome import problems, results, table, totals
from shop.demo.story import Story
from shop.demo.worker import WorkerProcess
from shop.models import FULL_SHELF, Order, Product
from shop.patterns.approval import approve
from shop.patterns.compensation import send_off

LOOK_SECONDS = 0.1
STOP_SECONDS = 15

NEXT = """Try it yourself:
  {manage} migrate
  {manage} runserver          the shop, on port 8000
  {manage} run_jobworker      in a second terminal
  {manage} createsuperuser    for the admin
Order with the flaky card and watch its page. Stop the worker, place an order, start the worker again.
"""


class Command(BaseCommand):
    help = "Places a few orders, lets a real worker process run their chains, and checks how they end."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pace", type=float, default=0.5, metavar="SECONDS", help="longest wait between orders")
        parser.add_argument("--timeout", type=float, default=45, metavar="SECONDS", help="the orders' deadline")

    def handle(self, *args: Any, pace: float, timeout: float, **options: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _leave)
        run = secrets.token_hex(3)
        settings.SHOP_QUEUE = f"demo-{run}"
        with demo_database() as database_url:
            call_command("migrate", verbosity=0, interactive=False)
            with WorkerProcess(settings.SHOP_QUEUE, database_url) as worker:
                self.title(f"A worker process starts: {worker.title}")
                orders = self.follow(run, worker, pace, deadline=time.monotonic() + timeout)
                self.stop(worker)
            self.judge(orders)

    def follow(self, run: str, worker: WorkerProcess, pace: float, deadline: float) -> list[Order]:
        self.title("Orders are placed, and the attempts of their jobs end")
        story = Story(self.stdout.write, self.style)
        orders = []
        for order in place_orders(run):
            orders.append(order)
            story.add(order)
            self.look(story, worker, time.monotonic() + pace)
        expensive = orders[-1]
        approve(expensive, "the demo")
        self.finish(story, worker, deadline)
        Product.objects.update(stock=FULL_SHELF)  # a demo before this one may have emptied it
        story.add_chain(expensive, send_off(expensive, settings.SHOP_QUEUE))
        self.finish(story, worker, deadline)
        return orders

    def finish(self, story: Story, worker: WorkerProcess, deadline: float) -> None:
        if not self.look(story, worker, deadline):
            raise CommandError(f"Not finished in time. The worker said:\n{worker.output}")

    def look(self, story: Story, worker: WorkerProcess, until: float) -> bool:
        """Tells what happens until then, or until all orders are through; returns which of the two it was."""
        is_over = False
        while not is_over and time.monotonic() < until:
            if not worker.is_alive:
                raise CommandError(f"The worker ended by itself. It said:\n{worker.output}")
            time.sleep(LOOK_SECONDS)
            is_over = story.is_over()
            story.tell()
        return is_over

    def stop(self, worker: WorkerProcess) -> None:
        self.title("SIGTERM: the worker drains and stops")
        started = time.monotonic()
        code = worker.stop(STOP_SECONDS)
        if code != 0:
            ending = "did not stop" if code is None else f"ended with exit code {code}"
            raise CommandError(f"The worker {ending}. It said:\n{worker.output}")
        self.stdout.write(f"  {worker.output.splitlines()[-1].strip()}")
        self.stdout.write(f"  stopped cleanly after {time.monotonic() - started:.1f} s, exit code 0")

    def judge(self, orders: list[Order]) -> None:
        rows = results(orders)
        self.title("Where it ended")
        self.stdout.write(table(rows))
        if wrong := problems(rows):
            raise CommandError("The final state is wrong:\n  " + "\n  ".join(wrong))
        verdict = f"\n{totals(rows)}: every paid order was charged once and credited once."
        self.stdout.write(self.style.SUCCESS(verdict))
        manage = f"{_shown(Path(sys.executable))} {_shown(settings.BASE_DIR / 'manage.py')}"
        self.stdout.write(f"\n{NEXT.format(manage=manage)}")

    def title(self, text: str) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n{text}"))


def _leave(signum: int, frame: object) -> NoReturn:
    """Leaves through the ``with`` blocks, so that the worker is not orphaned."""
    sys.exit(128 + signum)


def _shown(path: Path) -> str:
    """As one would type it here."""
    folder = Path.cwd()
    return os.fspath(path.relative_to(folder) if path.is_relative_to(folder) else path)
