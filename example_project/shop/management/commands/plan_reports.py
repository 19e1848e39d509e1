"""``manage.py plan_reports``: run it at every deployment; it plans the first nightly report, once."""

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand

from shop.patterns.recurring import SHOP_ZONE, report_on


class Command(BaseCommand):
    help = "Plans the nightly sales report, unless it is planned already."

    def handle(self, *args: Any, **options: Any) -> None:
        chain = report_on(datetime.now(SHOP_ZONE).date())
        what = "is planned already" if chain.deduplicated else "is planned from now on"
        self.stdout.write(f"The sales report {what}: chain {chain.id}.")
