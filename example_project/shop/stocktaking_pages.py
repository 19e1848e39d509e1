"""The page of a stocktaking: a progress bar that a script updates, and a button that cancels the job."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobTypeMismatch
from shop.models import Product
from shop.stocktaking import Shelf, count_stock


@require_safe
def start_page(request: HttpRequest) -> HttpResponse:
    return render(request, "shop/stocktaking.html")


@require_POST
def start(request: HttpRequest) -> HttpResponse:
    shelf = Shelf(list(Product.objects.values_list("pk", flat=True)))
    chain = count_stock.enqueue(shelf, queue=settings.SHOP_QUEUE)
    return redirect("shop:stocktaking", chain.id)


@require_safe
def page(request: HttpRequest, chain_id: UUID) -> HttpResponse:
    return render(request, "shop/stocktaking.html", {"chain_id": chain_id, "state": _state(_chain(chain_id))})


@require_safe
def state(request: HttpRequest, chain_id: UUID) -> HttpResponse:
    """Return the state as JSON, for the script of the page."""
    return JsonResponse(_state(_chain(chain_id)))


@require_POST
def cancel(request: HttpRequest, chain_id: UUID) -> HttpResponse:
    chains.cancel(_chain(chain_id))
    return redirect("shop:stocktaking", chain_id)


def _chain(chain_id: UUID) -> Chain:
    """Return the chain of a stocktaking. With the id of any other chain, visitors could read or cancel that one."""
    try:
        return chains.get(chain_id, job_type=count_stock)
    except (ChainNotFound, JobTypeMismatch) as error:
        raise Http404 from error


def _state(chain: Chain) -> dict[str, Any]:
    progress = chain.progress  # None until the handler has reported
    return {
        "status": chain.status,
        "is_finished": chain.finished_at is not None,
        "fraction": progress.fraction if progress else 0,
        "text": progress.text if progress else "waiting for a worker",
    }
