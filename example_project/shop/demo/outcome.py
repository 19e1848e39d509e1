"""The final state of the orders: a table, and a check that it is correct."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shop.models import GatewayCharge, LoyaltyAccount, Order, OutboxMessage

CHARGE_ATTEMPTS = {Order.Card.GOOD: 1, Order.Card.FLAKY: 3, Order.Card.DECLINED: 1}
ROW = "  {:<9} {:<26} {:<9} {:<16} {:>15} {:>12} {:>7}"


@dataclass(frozen=True)
class Result:
    """The final state of one order."""

    order: Order
    chain_status: str
    charge_attempts: int
    times_charged: int
    receipts: int

    @classmethod
    def of(cls, order: Order) -> "Result":
        chain = order.load_chain()
        charge = chain.jobs.of_type("shop.charge").get()
        payment = GatewayCharge.objects.get(idempotency_key=str(charge.pk))
        receipts = OutboxMessage.objects.filter(recipient=order.email, subject=f"Receipt for order {order.pk}")
        return cls(order, chain.status, charge.attempt, payment.times_charged, receipts.count())

    @property
    def points(self) -> int:
        return self.order.points if self.order.state == Order.State.POINTS_CREDITED else 0

    @property
    def row(self) -> str:
        order = self.order
        charged = f"{self.times_charged} × €{order.total}" if self.times_charged else "-"
        return ROW.format(
            str(order),
            order.email,
            order.card,
            order.get_state_display(),
            self.charge_attempts,
            charged,
            self.points or "-",
        )

    def problems(self) -> Iterator[str]:
        """Yield every difference from the outcome expected for the order's card."""
        is_good = self.order.card != Order.Card.DECLINED
        expected = {
            "state": Order.State.POINTS_CREDITED if is_good else Order.State.DECLINED,
            "chain status": "completed" if is_good else "failed",
            "attempts of shop.charge": CHARGE_ATTEMPTS[Order.Card(self.order.card)],
            "charges": int(is_good),
            "receipts": int(is_good),
            "delivery": Order.Delivery.DONE if self.order.decided_by else Order.Delivery.NOT_STARTED,
        }
        order = self.order
        ending = (order.state, self.chain_status, self.charge_attempts)
        found = (*ending, self.times_charged, self.receipts, order.delivery)
        for (what, wanted), value in zip(expected.items(), found, strict=True):
            if value != wanted:
                yield f"{self.order}: {what} should be {wanted}, not {value}"


def results(orders: Sequence[Order]) -> list[Result]:
    ids = [order.pk for order in orders]
    return [Result.of(order) for order in Order.objects.filter(pk__in=ids).select_related("product").order_by("pk")]


def table(rows: Sequence[Result]) -> str:
    head = ROW.format("order", "customer", "card", "state", "charge attempts", "charged", "points")
    return "\n".join([head, *(result.row for result in rows)])


def totals(rows: Sequence[Result]) -> str:
    paid = [result for result in rows if result.order.payment_reference]
    charges = sum(result.times_charged for result in rows)
    tries = sum(result.charge_attempts for result in rows)
    return f"{len(rows)} orders, {len(paid)} paid, {charges} charges in {tries} tries"


def problems(rows: Sequence[Result]) -> list[str]:
    """Return a sentence per problem; empty if each paid order was charged once and credited once."""
    return [problem for result in rows for problem in result.problems()] + list(_wrong_balances(rows))


def _wrong_balances(rows: Sequence[Result]) -> Iterator[str]:
    expected: Counter[str] = Counter()
    for result in rows:
        expected[result.order.email] += result.points
    accounts = LoyaltyAccount.objects.filter(email__in=expected)
    found = dict(accounts.values_list("email", "points"))
    for email, points in expected.items():
        if found.get(email, 0) != points:
            yield f"{email}: {found.get(email, 0)} points in the account, {points} earned"
