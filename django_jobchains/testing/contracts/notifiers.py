"""The contract of a notifier."""

from django_jobchains.testing.contracts.budgets import SharingOut
from django_jobchains.testing.contracts.listening import Listening
from django_jobchains.testing.contracts.publishing import Publishing


class NotifierContract(Publishing, Listening, SharingOut):
    """What every notifier does. Say how one is made, and pytest runs it::

        class TestMine(NotifierContract):
            def make(self) -> Notifier:
                return MyNotifier("default")

    The attributes ``carries_hints``, ``calls_back`` and ``has_budgets`` say what it can do; ``interrupt`` takes its
    server away. If it uses the database, mark the class ``pytest.mark.django_db(transaction=True)``.
    """
