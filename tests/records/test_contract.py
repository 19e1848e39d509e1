"""The contract of record models: one with our columns and numeric keys, one with other column names and text keys."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_jobchains.exceptions import ProcessorNotFound
from django_jobchains.processors import Processors
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from django_jobchains.testing.contracts import RecordContract
from django_jobchains.testing.contracts.records import RecordTests
from tests.records.models import LETTER_COLUMNS, Letter, Upload

numbers = count()


class Registered(RecordContract):
    options: dict[str, Any] = {}
    model: Any

    @pytest.fixture
    def kind(self, processors: Processors) -> RecordType:
        processors.records(self.model, **self.options)(lambda record, run: None)
        [kind] = processors.record_types.values()
        return kind


class TestUploads(Registered):
    model = Upload

    def make(self) -> Upload:
        return Upload.objects.create()


class TestLetters(Registered):
    model = Letter
    options = {"columns": LETTER_COLUMNS, "order_by": ["created", "code"]}

    def make(self) -> Letter:
        return Letter.objects.create(code=f'it\'s {{1}}, "{next(numbers)}"')


@pytest.fixture(scope="class")
def isolated(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let all connections use the isolation level of the test class."""

    def set_level(connection: Any, **kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation TO '{request.cls.level}'")

    with django_db_blocker.unblock():
        connection.close()
    connection_created.connect(set_level)
    yield
    connection_created.disconnect(set_level)
    with django_db_blocker.unblock():
        connection.close()


@pytest.mark.postgresql
@pytest.mark.usefixtures("isolated")
class AtHigherLevel(TestUploads):
    __test__ = False
    level: str

    def test_the_level_is_set(self, store: Store) -> None:
        assert store.db.fetch("SELECT current_setting('transaction_isolation')", []) == [(self.level,)]


class TestUploadsAtRepeatableRead(AtHigherLevel):
    __test__ = True
    level = "repeatable read"


class TestUploadsAtSerializable(AtHigherLevel):
    __test__ = True
    level = "serializable"


class TestUnregistered(RecordTests):
    name = "records.nothing"

    @pytest.mark.usefixtures("registry")
    def test_a_name_that_is_not_registered_is_an_error(self, request: pytest.FixtureRequest) -> None:
        with pytest.raises(ProcessorNotFound, match=r"No processor for 'records\.nothing'"):
            request.getfixturevalue("kind")
