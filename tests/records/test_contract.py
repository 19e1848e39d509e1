"""The contract of record models: one with our columns and numeric keys, one with other column names and text keys."""

from itertools import count
from typing import Any

import pytest

from django_jobchains.exceptions import ProcessorNotFound
from django_jobchains.processors import Processors
from django_jobchains.records.declarations import RecordType
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


class TestUnregistered(RecordTests):
    name = "records.nothing"

    @pytest.mark.usefixtures("registry")
    def test_a_name_that_is_not_registered_is_an_error(self, request: pytest.FixtureRequest) -> None:
        with pytest.raises(ProcessorNotFound, match=r"No processor for 'records\.nothing'"):
            request.getfixturevalue("kind")
