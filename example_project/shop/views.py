"""The shop's pages. ``place_order`` creates an order and its chain in one commit."""

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_jobchains.chains import Chain
from shop.forms import OrderForm
from shop.jobs import Charge, charge
from shop.models import LoyaltyAccount, Order, OutboxMessage, Product
from shop.patterns.approval import NEEDS_APPROVAL_ABOVE, ask_for_approval
from shop.progress import Progress

RECENT_ORDERS = 8
LISTED_ORDERS = 100


@require_safe
def front_page(request: HttpRequest) -> HttpResponse:
    return _front_page(request, OrderForm(initial={"product": request.GET.get("product", "")}))


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST)
    if not form.is_valid():
        return _front_page(request, form)
    with transaction.atomic():
        order: Order = form.save()
        order.chain_id = _start_chain(order).id
        order.save(update_fields=["chain_id"])
    return redirect(order)


def _start_chain(order: Order) -> Chain:
    if order.total > NEEDS_APPROVAL_ABOVE:
        return ask_for_approval(order, queue=settings.SHOP_QUEUE)
    return charge.enqueue(Charge(order.pk), queue=settings.SHOP_QUEUE)


@require_safe
def order_page(request: HttpRequest, order_id: int) -> HttpResponse:
    order = get_object_or_404(Order.objects.select_related("product"), pk=order_id)
    account = LoyaltyAccount.objects.filter(email=order.email).first()
    context = {"order": order, "account": account, "progress": Progress.of(order)}
    return render(request, "shop/order.html", context)


@require_safe
def order_list(request: HttpRequest) -> HttpResponse:
    return render(request, "shop/orders.html", {"orders": _orders(LISTED_ORDERS)})


@require_safe
def outbox(request: HttpRequest) -> HttpResponse:
    return render(request, "shop/outbox.html", {"messages": OutboxMessage.objects.all()[:LISTED_ORDERS]})


def _front_page(request: HttpRequest, form: OrderForm) -> HttpResponse:
    context = {"form": form, "products": Product.objects.all(), "orders": _orders(RECENT_ORDERS)}
    return render(request, "shop/front.html", context)


def _orders(limit: int) -> list[Order]:
    return list(Order.objects.select_related("product")[:limit])
