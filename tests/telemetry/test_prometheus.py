"""``/metrics`` on the health port, and the dashboard and alerts that use it."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import connection
from prometheus_client.parser import text_string_to_metric_families

from django_jobchains import chains
from django_jobchains.management.commands.run_jobworker import has_prometheus
from django_jobchains.telemetry import names, report
from django_jobchains.telemetry.otel.prometheus import MergedMetrics, ProcessMetrics, family_name
from django_jobchains.worker.health import Health
from django_jobchains.worker.health_server import HealthServer
from tests.support.attempts import committed
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import free_port
from tests.telemetry.test_events import COUNTED
from tests.telemetry.test_metrics import WithChildren

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
WELL = Health("mail:7:a", True, True, (), 10, 3)


@pytest.fixture
def metrics():
    metrics = ProcessMetrics()
    yield metrics
    metrics.close()


def scrape(port):
    request = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        request.request("GET", "/metrics")
        answer = request.getresponse()
        return answer.status, answer.read().decode()
    finally:
        request.close()


def value(text, name, **labels):
    """Return the sum of a sample over all other labels."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def completed(port):
    return value(scrape(port)[1], "jobchains_attempt_ended_total", jobchains_job_outcome="completed")


@committed
def test_a_worker_serves_what_it_counted(metrics, ship, start_worker):
    chains.enqueue_many([ship.item() for _ in range(3)])
    worker = start_worker()
    server = HealthServer("127.0.0.1", 0, worker.health, metrics=metrics.text)
    server.start()
    try:
        until(lambda: completed(server.port) == 3)
        status, text = scrape(server.port)
    finally:
        server.close()
    assert status == 200
    assert value(text, "messaging_client_sent_messages_total", messaging_destination_name="default") == 3
    assert value(text, "jobchains_worker_slots", jobchains_slot_kind="thread") == 2


@pytest.mark.parametrize(("metrics_of", "status"), [(None, 404), (lambda: 1 / 0, 500)])
def test_without_metrics_the_health_port_still_answers(metrics_of, status):
    server = HealthServer("127.0.0.1", 0, lambda: WELL, metrics=metrics_of)
    server.start()
    try:
        assert scrape(server.port)[0] == status
    finally:
        server.close()


def test_the_exporter_without_the_rest_of_the_extra_is_not_used(monkeypatch):
    """A project may have installed it for its own metrics."""
    assert has_prometheus()
    for name in ("django_jobchains.telemetry.otel", "django_jobchains.telemetry.otel.prometheus"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation", None)
    assert not has_prometheus()


@pytest.mark.slow
@committed
@pytest.mark.skipif(connection.vendor != "sqlite", reason="about processes: run on SQLite")
def test_the_processes_of_a_supervisor_are_merged_and_those_that_ended_still_count(start_process):
    port = free_port()
    process = start_process("--processes", "2", "--slots", "1", "--health-port", str(port))
    process.until_working(2)
    chains.enqueue_many([jobs.write.item(0.05) for _ in range(20)])
    until(lambda: completed(port) == 20, 30, lambda: scrape(port)[1])
    until(lambda: value(scrape(port)[1], "jobchains_worker_slots", jobchains_slot_kind="thread") == 2, 30)
    process.signal(signal.SIGHUP)  # replaces both workers
    until(lambda: process.output.count("Worker ") >= 4, 40, lambda: process.output)
    chains.enqueue_many([jobs.write.item(0) for _ in range(5)])
    until(lambda: completed(port) == 25, 30, lambda: scrape(port)[1])
    # Counted by the supervisor.
    until(lambda: value(scrape(port)[1], "jobchains_process_ended_total", jobchains_process_outcome="exited") == 2, 30)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.output


def exposition(count, jobs, slots, database="default"):
    return f"""# TYPE jobchains_attempt_ended counter
jobchains_attempt_ended_total{{jobchains_job_outcome="completed"}} {count}
# TYPE jobchains_queue_jobs gauge
jobchains_queue_jobs{{messaging_destination_name="default",jobchains_database_alias="{database}"}} {jobs}
# TYPE jobchains_worker_slots gauge
jobchains_worker_slots{{jobchains_slot_state="idle"}} {slots}
# TYPE jobchains_pool_memory_bytes gauge
jobchains_pool_memory_bytes{{jobchains_pool_key="films"}} {slots}
# TYPE jobchains_chain_duration_seconds histogram
jobchains_chain_duration_seconds_bucket{{le="1.0"}} {count}
jobchains_chain_duration_seconds_bucket{{le="+Inf"}} {count}
jobchains_chain_duration_seconds_count {count}
jobchains_chain_duration_seconds_sum {count}
"""


def test_counters_and_slots_are_added_up_and_figures_about_the_database_are_not():
    merged = MergedMetrics()
    merged.add_ended(SimpleNamespace(metrics=exposition(count=100, jobs=1000, slots=10)))
    own, *running = exposition(1, jobs=5, slots=10), exposition(1, jobs=4, slots=10), exposition(1, 2, 10, "other")
    text = merged.text(own, lambda: running)
    assert value(text, "jobchains_attempt_ended_total") == 103
    assert value(text, "jobchains_chain_duration_seconds_bucket", le="+Inf") == 103
    assert value(text, "jobchains_chain_duration_seconds_sum") == 103
    assert value(text, "jobchains_queue_jobs", jobchains_database_alias="default") == 5
    assert value(text, "jobchains_queue_jobs", jobchains_database_alias="other") == 2
    assert value(text, "jobchains_worker_slots") == 30
    assert value(text, "jobchains_pool_memory_bytes") == 30


def test_a_process_that_ends_during_a_scrape_is_counted_once():
    merged, process = MergedMetrics(), SimpleNamespace(metrics=exposition(count=5, jobs=0, slots=0))
    ending = threading.Thread(target=merged.add_ended, args=[process])

    def read_others():
        ending.start()
        ending.join(0.1)
        return [process.metrics]

    texts = [merged.text("", read_others)]
    ending.join()
    texts.append(merged.text("", lambda: [process.metrics]))
    assert [value(text, "jobchains_attempt_ended_total") for text in texts] == [5, 5]


# The dashboard and the alerts

FUNCTIONS = {"sum", "max", "min", "rate", "increase", "by", "histogram_quantile", "absent", "or", "instance", "le"}
FUNCTIONS |= {"unless", "offset"}


ENDS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
#: The names of all samples and labels in a scrape of every metric.
SAMPLES = {family_name(metric) + end for metric in names.METRICS for end in ENDS.get(metric.kind, ("",))}
LABELS = {
    re.sub(r"\W", "_", attribute)
    for metric in names.METRICS
    for attribute in [*metric.attributes, *names.CONSTANTS.get(metric, ())]
}


def expressions():
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    text = (MONITORING / "alerts.yml").read_text()
    yield from re.findall(r"^ +expr: (?!>-)(.+)$", text, re.MULTILINE)
    yield from re.findall(r"^ +expr: >-\n((?: {10}.*\n)+)", text, re.MULTILINE)


def test_expressions_use_what_is_exported():
    for expression in expressions():
        bare = re.sub(r'"[^"]*"|\[[^]]*\]|\b\d+m\b', "", expression)
        metrics = set(re.findall(r"[a-zA-Z_]\w*", bare)) - FUNCTIONS - LABELS
        assert metrics, expression
        assert metrics - SAMPLES == set(), expression
        assert expression.count("(") == expression.count(")")


def test_the_dashboard_or_an_alert_uses_each_metric():
    words = set(re.findall(r"\w+", "\n".join(expressions())))
    for metric in names.METRICS:
        assert {family_name(metric) + end for end in ("", *ENDS.get(metric.kind, ()))} & words, metric


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, from Debian's package prometheus")
def test_promtool_accepts_the_alerts_and_the_dashboard(tmp_path):
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(shown)]
    text = json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    panels = tmp_path / "panels.yml"  # JSON is YAML
    panels.write_text(text.replace("$__rate_interval", "5m"))
    done = subprocess.run(
        ["promtool", "check", "rules", str(MONITORING / "alerts.yml"), str(panels)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_summary_and_a_severity():
    alerts = (MONITORING / "alerts.yml").read_text().split("- alert: ")[1:]
    assert len(alerts) == 20
    assert all("severity: " in alert and "summary: " in alert for alert in alerts)


@committed
def test_the_names_in_a_real_scrape_are_those_that_are_checked(metrics, processors, start_worker, add_worker):
    @processors.register("ship")
    def ship(job):
        if job.input:
            raise ValueError("no")

    ship.enqueue(0)
    ship.enqueue(1, max_attempts=1)
    ship.enqueue(0, delay=3600)
    start_worker()
    add_worker(WithChildren())
    for event, *_ in COUNTED:
        report(event)
    until(lambda: value(metrics.text(), "jobchains_attempt_ended_total") == 2)
    until(lambda: "jobchains_queue_jobs" in metrics.text() and "chain_duration" in metrics.text())
    found = [sample for family in text_string_to_metric_families(metrics.text()) for sample in family.samples]
    samples = {sample.name for sample in found}
    assert samples - SAMPLES == set()
    assert {label for sample in found for label in sample.labels} - LABELS == {"le"}
    assert {"jobchains_pool_memory_bytes", "jobchains_child_recycled_total"} <= samples
    assert len(samples) > 35
