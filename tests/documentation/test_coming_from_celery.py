"""The five tasks of the page *Coming from Celery* do the same in both systems."""

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.forms import UserCreationForm
from django.contrib.auth.models import User
from django.core import mail
from django.core.mail import send_mail
from django.db import transaction
from django.utils import timezone

from django_jobchains import Processors, RunningJob, chains, testing
from django_jobchains.chains import Chain
from django_jobchains.processors import retry_after, retryable_http_status
from tests.support.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "start" / "coming-from-celery.md"
EXAMPLE = re.compile(
    r"^### (.*?)\n.*?^```python\n# Celery\n(.*?)^```.*?^```python\n# django_jobchains\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = {title: (theirs, ours) for title, theirs, ours in EXAMPLE.findall(PAGE.read_text())}

pytestmark = pytest.mark.slow
both = pytest.mark.parametrize("system", ["celery", "jobchains"])


class HTTPError(Exception):
    def __init__(self, response: "Response") -> None:
        super().__init__(f"status {response.status_code}")
        self.response = response


class Service:
    """A service that answers 503 once, and asks to come back in 7 seconds. It stands for the library ``requests``."""

    HTTPError = HTTPError

    def __init__(self) -> None:
        self.received: list[Any] = []

    def post(self, url: str, json: Any, timeout: float) -> Any:
        self.received.append(json)
        return Response(503 if len(self.received) == 1 else 200)


class Response:
    headers = {"Retry-After": "7"}

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise HTTPError(self)


@pytest.fixture
def celery() -> Any:
    """Celery is installed in the environment of the slow tests only."""
    return import_module("celery")


@pytest.fixture
def app(celery: Any) -> Iterator[Any]:
    app = celery.Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=True)
    app.conf.update(task_always_eager=True, task_store_eager_result=True)
    yield app
    app.close()


@pytest.fixture
def run(celery: Any, app: Any, registry: Any, db: None) -> Any:
    """Execute an example of one system. Returns its names, and a function that runs what is due."""

    def run(title: str, system: str, **names: Any) -> tuple[SimpleNamespace, Any]:
        theirs, ours = EXAMPLES[title]
        processors = Processors()
        registry.add(processors)
        abortable, schedules = import_module("celery.contrib.abortable"), import_module("celery.schedules")
        offered = {
            "AbortableAsyncResult": abortable.AbortableAsyncResult, "AbortableTask": abortable.AbortableTask,
            "Chain": Chain, "RunningJob": RunningJob, "User": User, "UserCreationForm": UserCreationForm,
            "app": app, "chains": chains,
            "chord": celery.chord, "crontab": schedules.crontab, "processors": processors,
            "retry_after": retry_after, "retryable_http_status": retryable_http_status, "send_mail": send_mail,
            "shared_task": celery.shared_task,
            "timedelta": timedelta, "timezone": timezone, "transaction": transaction, **names,
        }  # fmt: skip
        exec(compile(theirs if system == "celery" else ours, str(PAGE), "exec"), offered)
        return SimpleNamespace(**offered), lambda: testing.run_due_jobs() if system == "jobchains" else None

    return run


@both
def test_a_mail_after_a_form(run: Any, system: str, django_capture_on_commit_callbacks: Any) -> None:
    names, work = run("A mail after a form", system)
    with django_capture_on_commit_callbacks(execute=True):
        names.sign_up(SimpleNamespace(save=lambda: User.objects.create_user("ada", "ada@example.com")))
    work()
    assert [(message.to, message.body) for message in mail.outbox] == [(["ada@example.com"], "Hello ada!")]


@both
def test_a_hundred_parts_and_a_total(run: Any, system: str) -> None:
    names, work = run("A hundred parts, and a total", system, read_page=lambda page: "word " * page)
    result = names.count_book(100)
    work()
    assert (result.get() if system == "celery" else result.refresh().output) == sum(range(100))


@both
def test_a_service_that_asks_to_come_back_later(run: Any, system: str) -> None:
    service = Service()
    names, work = run("A service that asks to come back later", system, requests=service, STOCK_URL="https://stock/")
    if system == "celery":
        names.push_order.delay(5)  # an eager task does not wait
    else:
        with testing.clock() as clock:
            chain = names.push_order.enqueue(5)
            work()
            clock.advance(6)
            work()
            assert len(service.received) == 1
            clock.advance(1)
            work()
            assert chain.refresh().status == "completed"
    assert service.received == [{"order": 5}] * 2


@both
def test_a_clean_up_every_night(run: Any, system: str) -> None:
    deleted: list[Any] = []
    objects = SimpleNamespace(filter=lambda **condition: SimpleNamespace(delete=lambda: deleted.append(condition)))
    names, work = run("A clean-up every night", system, Cart=SimpleNamespace(objects=objects))
    if system == "celery":
        entry = names.app.conf.beat_schedule["delete-old-carts"]
        assert str(entry["schedule"]) == "<crontab: 0 3 * * * (m/h/dM/MY/d)>"
        names.app.tasks[entry["task"]].delay()
    else:
        with testing.clock() as clock:
            testing.fire_schedules()
            clock.advance(86_400)
            testing.fire_schedules()
            work()
    [condition] = deleted
    assert condition["touched_at__lt"] < timezone.now()


def test_a_long_import_with_celery(run: Any) -> None:
    imported: list[int] = []

    def import_line(number: int) -> None:
        imported.append(number)
        if number == 2:
            names.cancel(names.import_lines.request.id)

    names, _ = run("A long import, with progress and a cancel button", "celery", import_line=import_line)
    assert names.import_lines.delay(10).get() == "aborted"
    assert imported == [0, 1, 2]


def test_a_long_import_with_jobchains(run: Any, start_worker: Any) -> None:
    imported: list[int] = []

    def import_line(number: int) -> None:
        imported.append(number)
        if number == 2:
            names.cancel(chain.id)
        time.sleep(0.02)

    names, _ = run("A long import, with progress and a cancel button", "jobchains", import_line=import_line)
    chain = names.import_lines.enqueue(1_000)
    start_worker()
    until(lambda: chain.refresh().status == "cancelled")
    assert 2 < len(imported) < 1_000
