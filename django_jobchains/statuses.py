"""The statuses of a job and every move between them.

Only ``store`` moves a status. Each move is one method there, guarded in its ``WHERE``; the table below is what the
documentation draws and what a test walks, also from each status a move is not allowed from.
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


#: Ordered, as they stand in a migration.
OPEN = (Status.BLOCKED, Status.PENDING, Status.RUNNING)
FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


@dataclass(frozen=True)
class Transition:
    """``move`` is the name of the method of ``store`` that makes it; ``source`` is None for a job that is created."""

    move: str
    source: Status | None
    target: Status
    #: True when the WHERE also asks for the attempt's lease number.
    fenced: bool = False


#: An attempt that was asked to stop and did not complete its job ends ``cancelled``, whatever else would have come.
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
    Transition("retry", Status.FAILED, Status.PENDING),
    Transition("retry", Status.FAILED, Status.BLOCKED),
    Transition("retry", Status.FAILED, Status.FAILED),
    Transition("retry", Status.CANCELLED, Status.PENDING),
    Transition("retry", Status.CANCELLED, Status.BLOCKED),
    Transition("retry", Status.CANCELLED, Status.FAILED),
    Transition("move", Status.PENDING, Status.PENDING),
)
