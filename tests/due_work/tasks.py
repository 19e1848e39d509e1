"""The tasks of the contract, and the service that they call."""

from uuid import UUID

from django.tasks import task

from tests.due_work.faults import may_die
from tests.shop.models import Effect


class PostOffice:
    """An external service. It sends one letter for an order, however often it is asked."""

    def send(self, order):
        Effect.objects.get_or_create(job_id=UUID(order), label="sent")

    def refuse(self, order):
        Effect.objects.create(job_id=UUID(order), label="refused")
        raise ConnectionError("The post office is closed.")


post_office = PostOffice()


@task
def send_letter(order):
    post_office.send(order)
    may_die("in the task, after its effect")


@task(backend="retrying")
def send_to_closed_office(order):
    post_office.refuse(order)
