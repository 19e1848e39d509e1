"""The page where staff approve or reject orders."""

from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from shop.models import Order
from shop.patterns.approval import NEEDS_APPROVAL_ABOVE, TIME_TO_DECIDE, AlreadyDecided, approve, reject


@require_safe
@staff_member_required
def approval_list(request: HttpRequest) -> HttpResponse:
    context = {
        "orders": Order.objects.filter(state=Order.State.AWAITING_APPROVAL).select_related("product"),
        "limit": NEEDS_APPROVAL_ABOVE,
        "hours": int(TIME_TO_DECIDE.total_seconds() // 3600),
    }
    return render(request, "shop/approvals.html", context)


@require_POST
@staff_member_required
def decide(request: HttpRequest, order_id: int) -> HttpResponse:
    order = get_object_or_404(Order.objects.exclude(chain_id=None), pk=order_id)
    person = request.user.get_username()
    try:
        if request.POST.get("decision") == "approve":
            approve(order, person)
            messages.success(request, f"{order} is approved. Its chain continues with the charge.")
        else:
            reject(order, "We cannot accept an order of this size.", person)
            messages.success(request, f"{order} is rejected. Nothing is charged.")
    except AlreadyDecided:
        messages.warning(request, f"{order} had already been decided. Nothing was changed.")
    return redirect("shop:approvals")
