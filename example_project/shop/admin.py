from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from django_jobchains.admin import JobRecordAdmin
from shop.models import (
    CarrierEntry,
    GatewayCharge,
    LoyaltyAccount,
    Order,
    OutboxMessage,
    Parcel,
    PriceList,
    Product,
    SalesReport,
    SupplierImport,
)
from shop.patterns.compensation import send_off
from shop.patterns.fan_in import start_import
from shop.stocktaking import Shelf, count_stock
from shop.tasks import mail_orders


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # takes no parameter at run time
    list_display = ("name", "price", "stock", "fits_letterbox")
    prepopulated_fields = {"slug": ("name",)}
    actions = ("count_selected",)

    @admin.action(description="Count the selected products", permissions=["change"])
    def count_selected(self, request: HttpRequest, queryset: QuerySet[Product]) -> None:
        """Start a chain that is slow enough to watch and to cancel: it takes seconds per product."""
        shelf = Shelf(list(queryset.values_list("pk", flat=True)))
        count_stock.enqueue(shelf, queue=settings.SHOP_QUEUE)
        self.message_user(request, f"{len(shelf.product_ids)} products are being counted.")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The card is editable: give a declined order a good card, then retry its failed job."""

    list_display = ("__str__", "email", "product", "quantity", "card", "state", "delivery", "placed_at")
    list_filter = ("state", "delivery", "card")
    actions = ("send_off_selected", "mail_selected")
    list_select_related = ("product",)
    search_fields = ("email", "payment_reference")
    readonly_fields = (
        "product",
        "quantity",
        "email",
        "state",
        "decided_by",
        "delivery",
        "payment_reference",
        "chain_id",
        "placed_at",
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # The shop's form creates the order together with its chain.

    def save_model(self, request: HttpRequest, obj: Order, form: Any, change: bool) -> None:
        """Write only the columns of the form, because a job may have changed the state since the order was read."""
        obj.save(update_fields=list(form.fields))

    @admin.action(description="Send off the selected orders", permissions=["change"])
    def send_off_selected(self, request: HttpRequest, queryset: QuerySet[Order]) -> None:
        """Pack and ship paid orders. An order that has already been sent off is not sent off again."""
        chains = [send_off(order, settings.SHOP_QUEUE) for order in queryset.exclude(payment_reference="")]
        started = [chain for chain in chains if not chain.deduplicated]
        self.message_user(request, f"{len(started)} of {len(queryset)} orders were sent off.")

    @admin.action(description="Mail a list of the selected orders", permissions=["view"])
    def mail_selected(self, request: HttpRequest, queryset: QuerySet[Order]) -> None:
        mail_orders.enqueue(list(queryset.values_list("pk", flat=True)), recipient=settings.DEFAULT_FROM_EMAIL)
        self.message_user(request, f"A list of {len(queryset)} orders will be mailed.")


@admin.register(PriceList)
class PriceListAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Saving a new list starts its import. The list then shows the result."""

    list_display = ("__str__", "added_at", "changed", "problems")
    readonly_fields = ("chain_id", "changed", "problems")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: PriceList, form: object, change: bool) -> None:
        start_import(obj)


@admin.register(SupplierImport)
class SupplierImportAdmin(JobRecordAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    """The rows are jobs: they can be retried, requeued and cancelled. A wrong file can be corrected before a retry."""

    list_display = ("file_name", "record_state", "lines", "added", "record_queued", "record_attempts")
    search_fields = ("file_name",)
    readonly_fields = ("file_name", "lines", "added")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # The shop's page counts the lines.


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Base class for rows that jobs write and people only view."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(LoyaltyAccount)
class LoyaltyAccountAdmin(ReadOnlyAdmin):
    list_display = ("email", "points")
    search_fields = ("email",)


@admin.register(GatewayCharge)
class GatewayChargeAdmin(ReadOnlyAdmin):
    list_display = ("idempotency_key", "amount", "reference", "tries", "times_charged")


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    list_display = ("subject", "recipient", "sent_at")


@admin.register(Parcel)
class ParcelAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "quantity", "address", "state", "scan")
    list_filter = ("state",)


@admin.register(CarrierEntry)
class CarrierEntryAdmin(ReadOnlyAdmin):
    list_display = ("tracking_code", "address", "looks")


@admin.register(SalesReport)
class SalesReportAdmin(ReadOnlyAdmin):
    list_display = ("day", "orders", "takings")
