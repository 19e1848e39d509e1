"""A task of Django's own framework. It runs on the same workers as the shop's chains."""

from typing import TYPE_CHECKING

import django
from django.core.mail import EmailMessage

from shop.models import Order

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task(queue_name="default")
def mail_orders(order_ids: list[int], recipient: str) -> int:
    """Mail a list of orders, and return how many of them still exist."""
    orders = Order.objects.filter(pk__in=order_ids).select_related("product").order_by("pk")
    lines = [f"{order.pk}  {order.quantity} × {order.product}  {order.email}" for order in orders]
    EmailMessage("Orders of the shop", "\n".join(lines), to=[recipient]).send()
    return len(lines)
