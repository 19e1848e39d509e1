"""The one point through which the admin shows what jobs say: inputs, outputs, errors, logs."""

from django.http import HttpRequest


class Payloads:
    """For the user of a request: nothing of it without the permission ``view_payload``."""

    def __init__(self, request: HttpRequest) -> None:
        self.is_allowed = bool(request.user.has_perm("django_jobchains.view_payload"))

    def error_line(self, text: str | None) -> str:
        """The first line of an error; without the permission its type alone."""
        lines = (text or "").strip().splitlines()
        line = lines[0] if lines else ""
        kind, _, _ = line.partition(": ")
        return line if self.is_allowed else kind if kind.replace(".", "").isidentifier() else ""
