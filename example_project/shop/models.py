"""The shop's models. An order refers to its chain; the chain does not refer to the shop."""

from decimal import Decimal
from uuid import UUID

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F
from django.urls import reverse

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.records import JobRecord

MAX_QUANTITY = 20
FULL_SHELF = 500


class ProductManager(models.Manager["Product"]):
    def take(self, product_id: int, quantity: int) -> bool:
        """Take goods off the shelf in the caller's transaction. Return False if there are too few."""
        enough = self.filter(pk=product_id, stock__gte=quantity)
        return bool(enough.update(stock=F("stock") - quantity))


class Product(models.Model):
    name = models.CharField(max_length=80)
    slug = models.SlugField(unique=True)
    description = models.CharField(max_length=200)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=FULL_SHELF)
    fits_letterbox = models.BooleanField(default=False)

    objects = ProductManager()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.name

    @property
    def picture(self) -> str:
        """The path of the product's picture, relative to STATIC_URL."""
        return f"shop/pictures/{self.slug}.svg"


class Order(models.Model):
    class State(models.TextChoices):
        PLACED = "placed", "Placed"
        AWAITING_APPROVAL = "awaiting", "Awaiting approval"
        REJECTED = "rejected", "Not approved"
        PAID = "paid", "Paid"
        RECEIPT_SENT = "receipt_sent", "Receipt sent"
        POINTS_CREDITED = "points_credited", "Points credited"
        DECLINED = "declined", "Card declined"
        UNPAID = "unpaid", "Payment failed"

    class Delivery(models.TextChoices):
        NOT_STARTED = "none", "Not started"
        PACKED = "packed", "Packed"
        SENT = "sent", "On its way"
        DONE = "done", "Done"
        REFUNDED = "refunded", "Sold out, refunded"

    class Card(models.TextChoices):
        """Test cards. ``shop.gateway`` simulates what each of them does."""

        GOOD = "good", "A good card"
        FLAKY = "flaky", "A flaky card: works after two time-outs"
        DECLINED = "declined", "A card that is declined"

    product = models.ForeignKey(Product, models.PROTECT)
    quantity = models.PositiveSmallIntegerField(
        default=1, validators=[MinValueValidator(1), MaxValueValidator(MAX_QUANTITY)]
    )
    #: The price of one piece when the order was placed.
    unit_price = models.DecimalField(max_digits=8, decimal_places=2, editable=False)
    email = models.EmailField("e-mail")
    card = models.CharField(max_length=10, choices=Card, default=Card.GOOD)
    address = models.CharField("deliver to", max_length=200, blank=True)
    state = models.CharField(max_length=20, choices=State, default=State.PLACED, editable=False)
    #: The user who approved or rejected the order; empty if nobody did.
    decided_by = models.CharField(max_length=150, blank=True, editable=False)
    delivery = models.CharField(max_length=20, choices=Delivery, default=Delivery.NOT_STARTED, editable=False)
    payment_reference = models.CharField(max_length=40, blank=True, editable=False)
    #: Set in the transaction that creates the order. It is not a foreign key, so that old chains can be pruned.
    chain_id = models.UUIDField(null=True, unique=True, editable=False)
    placed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"Order {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("shop:order", args=[self.pk])

    def load_chain(self) -> Chain:
        """Load the order's chain. Raise ``ChainNotFound`` if it has been deleted."""
        return chains.get(self.known_chain_id)

    @property
    def known_chain_id(self) -> UUID:
        assert self.chain_id is not None, "place_order() sets it in the transaction that creates the order"
        return self.chain_id

    @property
    def total(self) -> Decimal:
        return self.unit_price * self.quantity

    @property
    def points(self) -> int:
        """One loyalty point for each whole euro."""
        return int(self.total)

    def mark_paid(self, reference: str) -> None:
        self.payment_reference = reference
        self._enter(self.State.PAID, "payment_reference")

    def mark_receipt_sent(self) -> None:
        self._enter(self.State.RECEIPT_SENT)

    def mark_points_credited(self) -> None:
        self._enter(self.State.POINTS_CREDITED)

    def mark_declined(self) -> None:
        self._enter(self.State.DECLINED)

    def mark_unpaid(self) -> None:
        self._enter(self.State.UNPAID)

    def mark_awaiting_approval(self) -> None:
        self._enter(self.State.AWAITING_APPROVAL)

    def mark_approved(self, decided_by: str) -> None:
        self.decided_by = decided_by
        self._enter(self.State.PLACED, "decided_by")

    def mark_rejected(self, decided_by: str) -> None:
        self.decided_by = decided_by
        self._enter(self.State.REJECTED, "decided_by")

    def mark_delivery(self, delivery: "Order.Delivery") -> None:
        self.delivery = delivery
        self.save(update_fields=["delivery"])

    def _enter(self, state: "Order.State", *also: str) -> None:
        self.state = state
        self.save(update_fields=["state", *also])


class LoyaltyAccountManager(models.Manager["LoyaltyAccount"]):
    def credit(self, email: str, points: int) -> None:
        """Add the points in the caller's transaction. The first credit creates the account."""
        account, _ = self.get_or_create(email=email)
        self.filter(pk=account.pk).update(points=F("points") + points)


class LoyaltyAccount(models.Model):
    email = models.EmailField("e-mail", unique=True)
    points = models.PositiveIntegerField(default=0)

    objects = LoyaltyAccountManager()

    class Meta:
        ordering = ("email",)

    def __str__(self) -> str:
        return f"{self.email}: {self.points} points"


class GatewayCharge(models.Model):
    """A row of the payment service. In reality, this is in another company's database."""

    idempotency_key = models.CharField(max_length=80, unique=True)
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    #: Empty until the money is taken.
    reference = models.CharField(max_length=40, blank=True)
    tries = models.PositiveIntegerField(default=0)
    #: Never above 1, thanks to the idempotency key.
    times_charged = models.PositiveIntegerField(default=0)
    #: The idempotency key of the refund; empty if there was none.
    refund_key = models.CharField(max_length=80, blank=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.reference or "not charged"


class OutboxMessage(models.Model):
    """A sent e-mail, stored by ``shop.outbox``."""

    message_id = models.CharField(max_length=200, unique=True)
    recipient = models.EmailField()
    subject = models.CharField(max_length=200)
    body = models.TextField()
    sent_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.subject} to {self.recipient}"


class Parcel(models.Model):
    """A parcel of an order. An order may have several."""

    class State(models.TextChoices):
        PACKED = "packed", "Packed"
        READY = "ready", "Ready to be collected"
        POSTED = "posted", "Posted as a letter"
        ON_ITS_WAY = "on_its_way", "On its way"
        DELIVERED = "delivered", "Delivered"

    order = models.ForeignKey(Order, models.CASCADE, related_name="parcels")
    number = models.PositiveSmallIntegerField()
    quantity = models.PositiveSmallIntegerField()
    address = models.CharField(max_length=200, blank=True)
    tracking_code = models.CharField(max_length=80, blank=True)
    state = models.CharField(max_length=20, choices=State, default=State.PACKED)
    #: The carrier's latest scan.
    scan = models.CharField(max_length=40, blank=True)

    class Meta:
        ordering = ("order", "number")
        constraints = (models.UniqueConstraint(fields=["order", "number"], name="shop_one_parcel_per_number"),)

    def __str__(self) -> str:
        return f"Parcel {self.number} of order {self.order_id}"

    @property
    def fits_letterbox(self) -> bool:
        return self.quantity == 1 and self.order.product.fits_letterbox

    def enter(self, state: "Parcel.State", **fields: str) -> None:
        self.state = state
        for name, value in fields.items():
            setattr(self, name, value)
        self.save(update_fields=["state", *fields])


class CarrierEntry(models.Model):
    """A row of the carrier. In reality, this is in another company's database."""

    tracking_code = models.CharField(max_length=80, unique=True)
    address = models.CharField(max_length=200)
    looks = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-pk",)
        verbose_name_plural = "carrier entries"

    def __str__(self) -> str:
        return self.tracking_code


class SalesReport(models.Model):
    """The paid orders of one day."""

    day = models.DateField(unique=True)
    orders = models.PositiveIntegerField()
    takings = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        ordering = ("-day",)

    def __str__(self) -> str:
        return f"Sales of {self.day}"


class PriceList(models.Model):
    """New prices, one product per line: ``sencha;11.90``. Saving a list in the admin starts its import."""

    lines = models.TextField(help_text="One product per line, for example: sencha;11.90")
    chain_id = models.UUIDField(null=True, unique=True, editable=False)
    #: Written by the summary: the number of changed prices, and the errors.
    changed = models.PositiveIntegerField(null=True, editable=False)
    problems = models.JSONField(default=list, editable=False)
    added_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"Price list {self.pk}"


class SupplierImport(JobRecord):
    """A supplier's file, with one delivered product per line: ``sencha;40``. Its row is the job that adds the goods."""

    file_name = models.CharField(max_length=200)
    content = models.TextField()
    lines = models.PositiveIntegerField()
    #: The number of pieces that were added to the stock, written in the transaction that completes the record.
    added = models.PositiveIntegerField(null=True, editable=False)

    class Meta(JobRecord.Meta):
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.file_name} ({self.pk})"

    @property
    def badge(self) -> str:
        """The class of the state in the shop's pages, which know the states of jobs."""
        return {"queued": "pending", "processing": "running", "errored": "pending", "cancelled": "cancelled"}.get(
            self.state, self.state
        )
