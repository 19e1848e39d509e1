"""A task of Django's framework: an action of the admin enqueues it, and it runs like the shop's jobs."""

from django.conf import settings
from django.contrib.auth.models import User
from django.core import mail
from django.test import TestCase
from django.urls import reverse

from django_jobchains import testing
from shop.tasks import mail_orders
from shop.tests.baskets import no_waiting, place_order


@no_waiting
class MailOrdersTests(TestCase):
    def test_the_action_mails_the_selected_orders(self) -> None:
        orders = [place_order(), place_order()]
        self.client.force_login(User.objects.create_superuser("ada"))
        action = {"action": "mail_selected", "_selected_action": [order.pk for order in orders]}
        response = self.client.post(reverse("admin:shop_order_changelist"), action, follow=True)
        self.assertContains(response, "A list of 2 orders will be mailed.")
        testing.run_due_jobs(raise_errors=True)
        [message] = [sent for sent in mail.outbox if sent.subject == "Orders of the shop"]
        assert message.to == [settings.DEFAULT_FROM_EMAIL]
        assert str(message.body).count("ada@example.com") == 2

    def test_the_result_is_read_by_its_id(self) -> None:
        result = mail_orders.enqueue([place_order().pk], recipient="shop@example.com")
        testing.run_due_jobs(raise_errors=True)
        assert mail_orders.get_result(result.id).return_value == 1
