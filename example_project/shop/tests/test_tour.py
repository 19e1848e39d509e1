import signal
import socket
from datetime import timedelta
from unittest.mock import patch

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import TestCase, override_settings
from django.urls import reverse
from django.utils import timezone

from django_jobchains import testing
from django_jobchains.models import WorkerPresence
from shop.models import SalesReport


class TourTests(TestCase):
    def setUp(self) -> None:
        self.client.force_login(User.objects.create_superuser("staff"))

    def test_every_link_of_the_tour_opens_a_page(self) -> None:
        page = self.client.get(reverse("shop:tour")).content.decode()
        links = {part.partition('"')[0].partition("#")[0] for part in page.split('<a href="')[1:]}
        assert len(links) > 15
        names = ("dashboard_changelist", "chain_changelist", "schedule_changelist", "limitoverride_changelist")
        assert {reverse(f"admin:django_jobchains_{name}") for name in names} - links == set()
        for link in links:
            assert self.client.get(link).status_code == 200, link

    def test_the_report_is_written_at_once(self) -> None:
        testing.fire_schedules()
        answer = self.client.post(reverse("shop:report_now"))
        testing.run_due_jobs(raise_errors=True)
        assert SalesReport.objects.count() == 1
        assert self.client.get(answer["Location"]).status_code == 200

    @override_settings(DEBUG=True)
    def test_a_worker_is_killed(self) -> None:
        presence = self.presence()
        with patch("os.kill") as kill:
            self.client.post(reverse("shop:kill_worker", args=[presence.pk]))
        kill.assert_called_once_with(4711, signal.SIGKILL)

    @override_settings(DEBUG=True)
    def test_a_process_that_may_not_be_a_worker_is_not_killed(self) -> None:
        presence = self.presence()
        address = reverse("shop:kill_worker", args=[presence.pk])
        hour_ago = timezone.now() - timedelta(hours=1)
        with patch("os.kill") as kill:
            for change in ({"host": "another-machine"}, {"host": socket.gethostname(), "heartbeat_at": hour_ago}):
                WorkerPresence.objects.update(**change)
                assert self.client.post(address).status_code == 404
                self.assertNotContains(self.client.get(reverse("shop:tour")), address)
        kill.assert_not_called()

    def test_workers_are_killed_by_staff_and_during_development_only(self) -> None:
        address = reverse("shop:kill_worker", args=[self.presence().pk])
        with patch("os.kill") as kill:
            assert self.client.post(address).status_code == 404
            self.client.logout()
            with override_settings(DEBUG=True):
                assert self.client.post(address).status_code == 302
        kill.assert_not_called()

    def test_the_command_does_not_create_its_user_in_production(self) -> None:
        with self.assertRaisesMessage(CommandError, "DEBUG"):
            call_command("open_shop")

    def presence(self) -> WorkerPresence:
        now = timezone.now()
        return WorkerPresence.objects.create(
            id="shop:4711:abc",
            host=socket.gethostname(),
            pid=4711,
            version="0.1",
            slots=4,
            busy=0,
            stuck=0,
            type_names=[],
            is_stopping=False,
            started_at=now,
            heartbeat_at=now,
            heartbeat_seconds=10,
        )
