"""Approval: either a person or a delayed job decides, never both."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.core import mail
from django.db import connection
from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from django_jobchains import chains, testing
from shop.models import GatewayCharge, Order
from shop.patterns.approval import (
    TIME_TO_DECIDE,
    AlreadyDecided,
    Request,
    approval,
    approve,
    reject,
    reject_when_undecided,
)
from shop.tests.baskets import no_waiting, place_order

A_DAY = TIME_TO_DECIDE + timedelta(seconds=1)


@no_waiting
class ApprovalTests(TestCase):
    def setUp(self) -> None:
        self.order = place_order(quantity=20, product="kettle")
        self.client.force_login(User.objects.create_user("grace", is_staff=True))

    def decide(self, decision: str) -> Any:
        url = reverse("shop:decide", args=[self.order.pk])
        return self.client.post(url, {"decision": decision}, follow=True)

    def types(self) -> list[str]:
        return [job.type_name for job in self.order.load_chain().jobs]

    def outcome(self) -> tuple[str, str, str]:
        self.order.refresh_from_db()
        return self.order.state, self.order.decided_by, self.order.load_chain().status

    def test_an_expensive_order_waits_and_no_worker_takes_it(self) -> None:
        testing.assert_enqueued(approval, Request(self.order.pk))
        assert testing.run_due_jobs() == []
        assert self.outcome() == ("awaiting", "", "pending")
        self.assertContains(self.client.get(reverse("shop:approvals")), f"Approve {self.order}")
        self.assertContains(self.client.get(self.order.get_absolute_url()), "waits until our staff approve it")

    def test_an_approved_order_is_charged(self) -> None:
        self.assertContains(self.decide("approve"), "is approved")
        testing.run_due_jobs(raise_errors=True)
        assert self.outcome() == ("points_credited", "grace", "completed")
        assert self.types() == ["shop.approval", "shop.charge", "shop.send_receipt", "shop.credit_points"]

    def test_a_rejected_order_is_not_charged(self) -> None:
        self.assertContains(self.decide("reject"), "is rejected")
        testing.run_due_jobs(raise_errors=True)
        assert self.outcome() == ("rejected", "grace", "completed")
        assert not GatewayCharge.objects.exists()
        assert [message.subject for message in mail.outbox] == [f"We could not accept order {self.order.pk}"]
        self.assertContains(self.client.get(self.order.get_absolute_url()), "was not approved")

    def test_an_undecided_order_is_rejected_a_day_later(self) -> None:
        with testing.clock() as clock:
            clock.advance(TIME_TO_DECIDE - timedelta(minutes=1))
            assert testing.run_due_jobs() == []
            clock.advance(timedelta(minutes=2))
            testing.run_due_jobs(raise_errors=True)
        assert self.outcome() == ("rejected", "", "completed")
        assert self.types() == ["shop.approval", "shop.send_rejection"]
        assert chains.Chain.objects.of_type(reject_when_undecided.name).get().output == "rejected"

    def test_the_delayed_job_does_not_change_a_decision(self) -> None:
        self.decide("approve")
        with testing.clock() as clock:
            clock.advance(A_DAY)
            testing.run_due_jobs(raise_errors=True)
        assert self.outcome() == ("points_credited", "grace", "completed")
        assert chains.Chain.objects.of_type(reject_when_undecided.name).get().output == "already decided"

    def test_a_late_decision_shows_a_message(self) -> None:
        with testing.clock() as clock:
            clock.advance(A_DAY)
            testing.run_due_jobs(raise_errors=True)
        self.assertContains(self.decide("approve"), "had already been decided")
        assert self.outcome() == ("rejected", "", "completed")

    def test_a_second_click_changes_nothing(self) -> None:
        self.decide("approve")
        self.assertContains(self.decide("reject"), "had already been decided")
        self.assertContains(self.decide("approve"), "had already been decided")
        assert self.types() == ["shop.approval", "shop.charge"]

    def test_a_decision_that_fails_half_way_is_rolled_back(self) -> None:
        broken = patch("shop.patterns.approval.Charge", side_effect=RuntimeError("broken on purpose"))
        with broken, pytest.raises(RuntimeError):
            approve(self.order, "grace")
        assert self.outcome() == ("awaiting", "", "pending")
        assert self.types() == ["shop.approval"]

    def test_a_cancelled_order_cannot_be_decided(self) -> None:
        chains.cancel(self.order.known_chain_id)
        self.assertContains(self.decide("approve"), "had already been decided")
        with testing.clock() as clock:
            clock.advance(A_DAY)
            testing.run_due_jobs(raise_errors=True)
        assert self.outcome() == ("awaiting", "", "cancelled")
        assert chains.Chain.objects.of_type(reject_when_undecided.name).get().output == "already decided"


@no_waiting
class AdminTests(TestCase):
    def setUp(self) -> None:
        self.order = place_order(quantity=20, product="kettle")
        self.client.force_login(User.objects.create_superuser("ada"))
        job = self.order.load_chain().current_job
        self.url = reverse("admin:django_jobchains_job_complete", args=[job.pk])
        self.answer = {"job": job.pk, "completion-decision": "approve"}

    def test_the_admin_approves_an_order_as_the_page_does(self) -> None:
        self.assertContains(self.client.get(self.url), "Reject")
        self.assertContains(self.client.post(self.url, self.answer, follow=True), "1 job completed.")
        testing.run_due_jobs(raise_errors=True)
        self.order.refresh_from_db()
        assert (self.order.state, self.order.decided_by) == ("points_credited", "ada")

    def test_a_rejection_needs_a_reason(self) -> None:
        answer = {**self.answer, "completion-decision": "reject"}
        self.assertContains(self.client.post(self.url, answer), "Tell the customer why.")
        self.client.post(self.url, {**answer, "completion-reason": "Too many."})
        testing.run_due_jobs(raise_errors=True)
        self.order.refresh_from_db()
        assert (self.order.state, self.order.decided_by) == ("rejected", "ada")
        assert mail.outbox[0].body.startswith("Too many.")

    def test_a_chain_without_an_order_can_only_be_cancelled(self) -> None:
        """The admin's page *Enqueue a chain* can start one."""
        chain = approval.enqueue(Request(self.order.pk))
        url = reverse("admin:django_jobchains_chain_complete", args=[chain.id])
        answer = {**self.answer, "job": chain.id}
        self.assertContains(self.client.get(url), "Approve")
        self.assertContains(self.client.post(url, answer), "No order belongs to this chain.")
        assert chain.refresh().status == "pending"

    def test_an_order_that_has_been_decided_is_left_alone(self) -> None:
        approve(self.order, "grace")
        self.assertContains(self.client.post(self.url, self.answer, follow=True), "1 row skipped")
        self.order.refresh_from_db()
        assert self.order.decided_by == "grace"


class AtTheSameMomentTests(TransactionTestCase):
    serialized_rollback = True  # Keeps the products, which a migration creates.

    def test_only_one_of_two_decisions_takes_effect(self) -> None:
        for _ in range(5):
            order = place_order(quantity=20, product="kettle")
            together = Barrier(2)
            with ThreadPoolExecutor(2) as threads:
                yes = threads.submit(decide, order.pk, together, lambda order: approve(order, "grace"))
                no = threads.submit(decide, order.pk, together, lambda order: reject(order, "Too many.", "ada"))
            assert [yes.result(), no.result()].count("decided") == 1
            order.refresh_from_db()
            winner = "grace" if yes.result() == "decided" else "ada"
            assert (order.decided_by, order.load_chain().jobs.count()) == (winner, 2)


def decide(order_id: int, together: Barrier, decision: Callable[[Order], None]) -> str:
    """Run in a thread, on a separate connection."""
    try:
        order = Order.objects.get(pk=order_id)
        together.wait(timeout=20)
        decision(order)
    except AlreadyDecided:
        return "too late"
    finally:
        connection.close()
    return "decided"


class WhoMayDecideTests(TestCase):
    def setUp(self) -> None:
        self.order = place_order(quantity=20, product="kettle")
        self.url = reverse("shop:decide", args=[self.order.pk])

    def test_other_users_are_redirected_to_the_login_page(self) -> None:
        self.client.force_login(User.objects.create_user("mallory"))
        for response in (self.client.get(reverse("shop:approvals")), self.client.post(self.url)):
            assert response.status_code == 302
            assert "/admin/login/" in response.headers["Location"]
        self.order.refresh_from_db()
        assert self.order.state == Order.State.AWAITING_APPROVAL

    def test_decisions_require_post_and_a_token(self) -> None:
        staff = User.objects.create_user("grace", is_staff=True)
        self.client.force_login(staff)
        assert self.client.get(self.url).status_code == 405
        careful = self.client_class(enforce_csrf_checks=True)
        careful.force_login(staff)
        assert careful.post(self.url, {"decision": "approve"}).status_code == 403

    def test_an_unknown_order(self) -> None:
        self.client.force_login(User.objects.create_user("grace", is_staff=True))
        assert self.client.post(reverse("shop:decide", args=[10**9])).status_code == 404


class LimitTests(TestCase):
    def test_orders_up_to_the_limit_need_no_approval(self) -> None:
        order = place_order(quantity=3, product="kettle")
        assert order.load_chain().type_name == "shop.charge"
        testing.assert_enqueued(approval, count=0)
