"""Secrets in inputs, outputs, contexts and exceptions appear in no span, metric, event text or header."""

import logging

from django.db import DEFAULT_DB_ALIAS

from django_jobchains import context, notifications
from django_jobchains.notifications import Notifier
from django_jobchains.notifications.hints import encode
from django_jobchains.processors import Deduplicate
from tests.support.attempts import committed

pytestmark = committed

SECRET = "c4n4ry"


class Broken(Exception):
    """An error with a secret in its message, like those of database drivers and HTTP clients."""


def test_spans_and_metrics_hold_no_secrets(recorded, processors, make_worker):
    @processors.register("pay")
    def pay(job):
        with job.prepare():
            pass
        return job.continue_with("ship", {"token": SECRET})

    @processors.register("ship")
    def ship(job):
        if job.attempt == 1:
            with job.complete():
                raise Broken(f"no answer, password={SECRET}") from ValueError(f"token={SECRET}")
        return f"token={SECRET}"

    pay.enqueue({"password": SECRET})
    make_worker().run_until_idle()
    assert "complete" in recorded.names
    assert recorded.all("process ship")[0].events
    for span in recorded.spans:
        assert SECRET not in span.to_json()
    assert SECRET not in str(recorded.metrics())


def test_notifications_and_their_logs_hold_no_secrets(processors, make_worker, monkeypatch, caplog):
    pay = processors.register("pay")(lambda job: job.continue_with("ship", {"token": SECRET}))

    @processors.register("ship", max_attempts=1)
    def ship(job):
        raise Broken(f"password={SECRET}")

    sent = []

    class Recording(Notifier):
        def send(self, hints):
            sent.extend(hints)
            raise ConnectionError("no network")

    notifier = Recording(DEFAULT_DB_ALIAS)
    monkeypatch.setattr(notifications, "get_notifier", lambda using: notifier)
    with caplog.at_level(logging.DEBUG), context.bound(token=SECRET):
        waiting = pay.enqueue({"password": SECRET})
        ship.enqueue({"password": SECRET}, blockers=[waiting], deduplicate=Deduplicate("key"))
        make_worker().run_until_idle()
    assert {hint.kind for hint in sent} >= {"job_scheduled", "chain_finished"}
    assert SECRET not in "".join(map(encode, sent)) + repr(sent)
    assert any("no network" in record.getMessage() for record in caplog.records)
    assert SECRET not in caplog.text
