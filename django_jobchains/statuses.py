"""The statuses of a job, and all transitions between them.

Only ``store`` changes a status. Each transition is one method there, guarded in its ``WHERE``. The documentation shows
the table below, and tests check it, including the transitions that are not allowed.
"""

from dataclasses import dataclass

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class Status(TextChoices):
    BLOCKED = "blocked", _("blocked")
    PENDING = "pending", _("pending")
    RUNNING = "running", _("running")
    COMPLETED = "completed", _("completed")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


#: Migrations contain the order of both.
OPEN = (Status.BLOCKED, Status.PENDING, Status.RUNNING)
FINAL = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
#: The beginning of the error of an attempt whose lease expired.
LEASE_RAN_OUT = "The lease ran out"


@dataclass(frozen=True)
class Transition:
    """A change of status. ``move`` is the name of the store's method. ``source`` is None for a new job."""

    move: str
    source: Status | None
    target: Status
    #: True if the WHERE also checks the attempt's lease number.
    fenced: bool = False


#: An attempt that was asked to stop, and does not complete its job, always ends as ``cancelled``.
TRANSITIONS = (
    Transition("create", None, Status.PENDING),
    Transition("create", None, Status.BLOCKED),
    Transition("create", None, Status.CANCELLED),
    Transition("free", Status.BLOCKED, Status.PENDING),
    Transition("free", Status.BLOCKED, Status.FAILED),
    Transition("claim", Status.PENDING, Status.RUNNING),
    Transition("renew", Status.RUNNING, Status.RUNNING, fenced=True),
    Transition("finish", Status.RUNNING, Status.COMPLETED, fenced=True),
    Transition("reschedule", Status.RUNNING, Status.PENDING, fenced=True),
    Transition("reschedule", Status.RUNNING, Status.CANCELLED, fenced=True),
    Transition("fail", Status.RUNNING, Status.FAILED, fenced=True),
    Transition("fail", Status.RUNNING, Status.CANCELLED, fenced=True),
    Transition("hand_back", Status.RUNNING, Status.PENDING, fenced=True),
    Transition("hand_back", Status.RUNNING, Status.CANCELLED, fenced=True),
    Transition("reap", Status.RUNNING, Status.PENDING),
    Transition("reap", Status.RUNNING, Status.FAILED),
    Transition("reap", Status.RUNNING, Status.CANCELLED),
    Transition("complete", Status.BLOCKED, Status.COMPLETED),
    Transition("complete", Status.PENDING, Status.COMPLETED),
    Transition("complete", Status.RUNNING, Status.COMPLETED),
    Transition("cancel", Status.BLOCKED, Status.CANCELLED),
    Transition("cancel", Status.PENDING, Status.CANCELLED),
    Transition("cancel", Status.RUNNING, Status.RUNNING),
    Transition("expire", Status.BLOCKED, Status.CANCELLED),
    Transition("expire", Status.PENDING, Status.CANCELLED),
    Transition("retry", Status.FAILED, Status.PENDING),
    Transition("retry", Status.FAILED, Status.BLOCKED),
    Transition("retry", Status.FAILED, Status.FAILED),
    Transition("retry", Status.CANCELLED, Status.PENDING),
    Transition("retry", Status.CANCELLED, Status.BLOCKED),
    Transition("retry", Status.CANCELLED, Status.FAILED),
    Transition("move", Status.PENDING, Status.PENDING),
)
