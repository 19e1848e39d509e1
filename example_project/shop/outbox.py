"""An e-mail backend that stores mail in a table, so that a page of the shop can show it."""

from collections.abc import Sequence

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from shop.models import OutboxMessage


class OutboxBackend(BaseEmailBackend):
    """Stores each mail, and drops a second one with the same Message-ID, as a mail server may."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        return sum(self._send(message) for message in email_messages)

    def _send(self, message: EmailMessage) -> int:
        header = message.message()
        _, is_new = OutboxMessage.objects.get_or_create(
            message_id=header["Message-ID"],
            defaults={"recipient": message.to[0], "subject": str(message.subject), "body": str(message.body)},
        )
        return int(is_new)
