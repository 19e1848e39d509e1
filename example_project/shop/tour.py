"""The guided tour: what to try in the shop, and where to look in the admin."""

import os
import signal
import socket
from datetime import timedelta

from django.conf import settings
from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from django_jobchains import schedules
from django_jobchains.models import WorkerPresence
from shop.nightly import report_sales

SEVERAL_HEARTBEATS = timedelta(seconds=30)


def local_workers() -> QuerySet[WorkerPresence]:
    """Return the workers that run on this machine: another process may have the process id of any other worker."""
    since = timezone.now() - SEVERAL_HEARTBEATS
    return WorkerPresence.objects.filter(host=socket.gethostname(), heartbeat_at__gt=since)


@require_safe
def tour(request: HttpRequest) -> HttpResponse:
    context = {
        "dashboard": reverse("admin:django_jobchains_dashboard_changelist"),
        "chains": reverse("admin:django_jobchains_chain_changelist"),
        "workers": local_workers().exclude(slots=0).order_by("started_at"),
        "can_kill": settings.DEBUG and request.user.is_staff,
    }
    return render(request, "shop/tour.html", context)


@require_POST
@staff_member_required
def report_now(request: HttpRequest) -> HttpResponse:
    chain = schedules.run_now("sales-report")
    messages.success(request, f"The schedule has enqueued a chain of the type {report_sales.name}.")
    return redirect("admin:django_jobchains_chain_change", chain.id)


@require_POST
@staff_member_required
def kill_worker(request: HttpRequest, worker_id: str) -> HttpResponse:
    """Kill a worker process of this machine, as the kernel does when memory runs out."""
    worker = local_workers().filter(pk=worker_id).first()
    if not settings.DEBUG or worker is None:
        raise Http404
    try:
        os.kill(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        messages.warning(request, f"The process {worker.pid} has already ended.")
    else:
        messages.success(request, f"The worker process {worker.pid} was killed. Another one takes its place.")
    return redirect("shop:tour")
