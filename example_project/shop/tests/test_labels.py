"""Labels, whose renderer leaks, crashes and hangs in a child process of a worker."""

import logging

from django.test import TestCase, TransactionTestCase
from django.urls import reverse

from django_jobchains import chains, testing
from django_jobchains.chains import Job
from django_jobchains.models import FailedAttempt
from django_jobchains.worker import Worker
from shop.labels import Label, Trouble, render_label


class LabelPageTests(TestCase):
    def order_label(self, **changes: str) -> str:
        form = {"recipient": "Ada <b>", "address": "1 Street, London", "trouble": "none", **changes}
        return self.client.post(reverse("shop:render_label"), form, follow=True).content.decode()

    def test_a_label_is_rendered_and_shown(self) -> None:
        assert "pending" in self.order_label()
        testing.run_due_jobs()
        job = Job.objects.of_type("shop.render_label").get()
        url = reverse("shop:label_picture", args=[job.pk])
        self.assertContains(self.client.get(reverse("shop:labels")), url)
        answer = self.client.get(url)
        assert answer["Content-Type"] == "image/svg+xml"
        self.assertContains(answer, "Ada &lt;b&gt;")

    def test_a_label_that_is_not_rendered_has_no_picture(self) -> None:
        self.order_label()
        job = Job.objects.get()
        assert self.client.get(reverse("shop:label_picture", args=[job.pk])).status_code == 404

    def test_a_label_has_room_for_a_few_lines(self) -> None:
        assert "has room for 5 lines" in self.order_label(address="1,2,3,4,5,6")
        assert not Job.objects.exists()


class LabelRendererTests(TransactionTestCase):
    """The renderer in the child processes of a real worker."""

    serialized_rollback = True  # Keeps the products, which a migration creates.

    def setUp(self) -> None:
        logging.disable(logging.ERROR)  # The failures are expected.
        self.addCleanup(logging.disable, logging.NOTSET)
        self.worker = Worker(types=["shop.render_label"], poll_seconds=0.2)
        self.worker.start()
        self.addCleanup(self.worker.stop)

    def test_a_renderer_that_crashes_or_hangs_affects_only_its_own_label(self) -> None:
        crash, hang, good = (
            render_label.enqueue(Label("Ada", "London", trouble))
            for trouble in (Trouble.CRASH, Trouble.HANG, Trouble.NONE)
        )
        for chain in (crash, hang, good):
            chains.wait(chain.id, timeout=60)
        jobs = {chain.id: Job.objects.get(pk=chain.id) for chain in (crash, hang, good)}
        assert {job.status for job in jobs.values()} == {"completed"}
        assert [jobs[chain.id].attempt for chain in (crash, hang, good)] == [2, 2, 1]
        crashed, timed_out = (FailedAttempt.objects.get(job=chain.id) for chain in (crash, hang))
        assert crashed.kind == "crash"
        assert "SIGSEGV" in crashed.error
        assert "font cache" in crashed.traceback
        assert timed_out.kind == "timeout"

    def test_a_process_that_leaks_is_replaced(self) -> None:
        chain = render_label.enqueue(Label("Ada", "London", Trouble.LEAK))
        chains.wait(chain.id, timeout=60)
        self.worker.stop()
        [pool] = self.worker.health().pools
        assert (pool.recycled, pool.crashed, Job.objects.get().status) == (1, 0, "completed")
