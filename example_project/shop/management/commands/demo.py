"""``manage.py demo``, the command that ``make demo`` runs."""

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

from django_jobchains import schedules
from django_jobchains.chains import Chain
from shop.demo.database import demo_database
from shop.demo.orders import place_orders
from shop.demo.outcome import problems, results, table, totals
from shop.demo.story import Story
from shop.demo.worker import WorkerProcess
from shop.models import FULL_SHELF, Order, Product
from shop.nightly import report_sales
from shop.patterns.approval import approve
from shop.patterns.compensation import send_off
from shop.templatetags.shop import clock

POLL_SECONDS = 0.1
STOP_SECONDS = 15
TICKS = 2

NEXT = """Try it yourself:
  {manage} open_shop

It opens the shop in a web server, with a worker, the admin and a guided tour, and prints the addresses.
"""


class Command(BaseCommand):
    help = "Places orders, runs their chains in a worker process, and checks the result."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--pace", type=float, default=0.5, metavar="SECONDS", help="maximum time between orders")
        parser.add_argument("--timeout", type=float, default=45, metavar="SECONDS", help="time limit for all orders")

    def handle(self, *args: Any, pace: float, timeout: float, **options: Any) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _leave)
        run = secrets.token_hex(3)
        settings.SHOP_QUEUE = f"demo-{run}"
        with demo_database() as database_url:
            call_command("migrate", verbosity=0, interactive=False)
            with WorkerProcess(settings.SHOP_QUEUE, database_url) as worker:
                self.title(f"Starting a worker process: {worker.title}")
                orders = self.follow(run, worker, pace, deadline=time.monotonic() + timeout)
                self.tick(f"demo-{run}", worker, deadline=time.monotonic() + timeout)
                self.stop(worker)
            self.judge(orders)

    def follow(self, run: str, worker: WorkerProcess, pace: float, deadline: float) -> list[Order]:
        self.title("Orders and the attempts of their jobs")
        story = Story(self.stdout.write, self.style)
        orders = []
        for order in place_orders(run):
            orders.append(order)
            story.add(order)
            self.watch(story, worker, time.monotonic() + pace)
        expensive = orders[-1]
        approve(expensive, "the demo")
        self.finish(story, worker, deadline)
        Product.objects.update(stock=FULL_SHELF)  # A previous demo may have emptied it.
        story.add_chain(expensive, send_off(expensive, settings.SHOP_QUEUE))
        self.finish(story, worker, deadline)
        return orders

    def finish(self, story: Story, worker: WorkerProcess, deadline: float) -> None:
        if not self.watch(story, worker, deadline):
            raise CommandError(f"The orders did not complete in time. Output of the worker:\n{worker.output}")

    def watch(self, story: Story, worker: WorkerProcess, until: float) -> bool:
        """Print what happens until all orders have ended (returns True) or until this time (returns False)."""
        is_over = False
        while not is_over and time.monotonic() < until:
            if not worker.is_alive:
                raise CommandError(f"The worker ended unexpectedly. Its output:\n{worker.output}")
            time.sleep(POLL_SECONDS)
            is_over = story.is_over()
            story.show_new()
        return is_over

    def tick(self, name: str, worker: WorkerProcess, deadline: float) -> None:
        """Show the shop's schedules, and the ticks of another one, which does not wait for the night."""
        self.title("Schedules, whose chains the worker enqueues itself")
        for schedule in schedules.list():
            (tick,) = schedules.next_ticks(schedule.name, 1)
            self.stdout.write(f"  {schedule.name:<13} {schedule.cron:<11} next tick: {tick:%Y-%m-%d %H:%M %Z}")
        schedules.create(name, report_sales, every=1, queue=settings.SHOP_QUEUE)
        try:
            while len(done := Chain.objects.of_schedule(name).with_status("completed")) < TICKS:
                if not worker.is_alive or time.monotonic() > deadline:
                    raise CommandError(f"The schedule did not fire in time. Output of the worker:\n{worker.output}")
                time.sleep(POLL_SECONDS)
        finally:
            schedules.delete(name)
        for chain in sorted(done, key=lambda chain: chain.created_at):
            assert chain.scheduled_for is not None
            late = (chain.created_at - chain.scheduled_for).total_seconds()
            self.stdout.write(f"  {clock(chain.scheduled_for)}  {name} fired {late * 1000:.0f} ms after its tick")

    def stop(self, worker: WorkerProcess) -> None:
        self.title("SIGTERM: the worker drains and stops")
        started = time.monotonic()
        code = worker.stop(STOP_SECONDS)
        if code != 0:
            ending = "did not stop" if code is None else f"ended with exit code {code}"
            raise CommandError(f"The worker {ending}. Its output:\n{worker.output}")
        self.stdout.write(f"  {worker.output.splitlines()[-1].strip()}")
        self.stdout.write(f"  stopped cleanly after {time.monotonic() - started:.1f} s, exit code 0")

    def judge(self, orders: list[Order]) -> None:
        rows = results(orders)
        self.title("Result")
        self.stdout.write(table(rows))
        if wrong := problems(rows):
            raise CommandError("The result is wrong:\n  " + "\n  ".join(wrong))
        verdict = f"\n{totals(rows)}: every paid order was charged once and credited once."
        self.stdout.write(self.style.SUCCESS(verdict))
        manage = f"{_shown(Path(sys.executable))} {_shown(settings.BASE_DIR / 'manage.py')}"
        self.stdout.write(f"\n{NEXT.format(manage=manage)}")

    def title(self, text: str) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n{text}"))


def _leave(signum: int, frame: object) -> NoReturn:
    """Exit through the ``with`` blocks, so that the worker is not orphaned."""
    sys.exit(128 + signum)


def _shown(path: Path) -> str:
    """Return the path relative to the current folder, if it is inside it."""
    folder = Path.cwd()
    return os.fspath(path.relative_to(folder) if path.is_relative_to(folder) else path)
