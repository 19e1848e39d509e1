"""``manage.py plan_reports``: schedules the first nightly report. It is safe to run at every deployment."""

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand

from shop.patterns.recurring import SHOP_ZONE, report_on


class Command(BaseCommand):
    help = "Schedules the nightly sales report, unless it is already scheduled."

    def handle(self, *args: Any, **options: Any) -> None:
        chain = report_on(datetime.now(SHOP_ZONE).date())
        what = "is already scheduled" if chain.deduplicated else "is now scheduled"
        self.stdout.write(f"The sales report {what}: chain {chain.id}.")
