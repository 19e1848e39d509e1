"""The NATS notifier: options, sending, listening, security and processes."""

import asyncio
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.notifications import EVERY, Hint, get_notifier, job_scheduled
from django_jobchains.notifications.nats import NatsNotifier, OutboxFull, thread
from django_jobchains.notifications.nats.thread import MAX_WAITING
from tests.notifications.servers import processes as nats_processes
from tests.support.forks import Child
from tests.support.servers.redis import certificate
from tests.support.waiting import stays, until

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")
UNREACHABLE = "nats://127.0.0.1:1"


@pytest.fixture
def make():
    made = []

    def make(servers=UNREACHABLE, **options):
        made.append(NatsNotifier("default", servers=servers, **options))
        return made[-1]

    yield make
    for notifier in made:
        notifier.close()


def permissions_of_the_guide():
    """Return the example of docs/guides/wake-ups.md."""
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "wake-ups.md").read_text()
    return guide.partition("```conf\n")[2].partition("```")[0]


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": "http://127.0.0.1"}, "nats://host:port"),
        ({"servers": "nats://"}, "nats://host:port"),
        ({"servers": "nats://shop:s3cret@host:port"}, "invalid address or port"),
        ({"servers": []}, "at least one"),
        ({"prefix": "a b"}, "prefix"),
        ({"prefix": "a.>"}, "prefix"),
        ({"pasword": "s3cret"}, r"pasword. Known: user, password"),
        ({"nkeys_seed": "seed.txt"}, "nkeys"),
    ],
)
def test_invalid_option_raises_improperly_configured(settings, monkeypatch, options, message):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    settings.JOBCHAINS = nats_processes.jobchains(**{"servers": UNREACHABLE, **options})
    with pytest.raises(ImproperlyConfigured, match=message) as raised:
        get_notifier("default")
    assert "s3cret" not in str(raised.value)


def test_port_and_scheme_are_optional(make):
    servers = ["one", "nats://two", "tls://three:1234", "me:secret@four", "nats://[::1]"]
    expected = ["nats://one:4222", "nats://two:4222", "tls://three:1234", "nats://me:secret@four:4222"]
    assert make(servers)._servers == [*expected, "nats://[::1]:4222"]


def test_missing_driver_names_the_extra():
    script = (
        "import sys; sys.modules['nats'] = None\n"
        "from django.core.exceptions import ImproperlyConfigured\n"
        "try:\n    import django_jobchains.notifications.nats\n"
        "except ImproperlyConfigured as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "install django_jobchains[nats]" in done.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"servers": ["nats://me:s3cret@one", "nats://t0ken@two"]}, None),
        ({"servers": "host", "user": "me", "password": "s3cret"}, None),
        ({"servers": "host", "token": "t0ken"}, None),
        ({"servers": "host", "tls": ssl.create_default_context()}, None),
        (
            {"servers": ["nats://me:s3cret@one", "two"]},
            "the NATS server at two:4222 is used without credentials",
        ),
    ],
)
def test_security_problem_names_a_server_without_credentials(make, options, problem):
    assert make(**options).security_problem() == problem


# Sending


def test_short_lived_process_sends_its_hints(nats_server, make, listen):
    """This includes resolving a name, for which an exiting interpreter cannot start threads."""
    received = listen(make(nats_server.url))
    for host in ("127.0.0.1", "localhost"):
        server, hint = f"nats://{host}:{nats_server.port}", job_scheduled(f"short.lived.on.{host}", 3)
        assert nats_processes.run(server, f"notifier.publish([job_scheduled({hint.subject!r}, 3)])") == ""
        until(lambda: hint in received.hints)  # noqa: B023
        assert received.hints[-1].count == 3


@pytest.mark.slow
def test_process_ends_without_a_responding_server(start_server):
    paused = start_server()
    paused.freeze()
    for servers in (UNREACHABLE, paused.url):
        assert "Traceback" not in nats_processes.run(servers, "notifier.publish([job_scheduled('a.b')])")


def test_waiting_hints_of_one_subject_are_merged(make):
    notifier = make()
    for number in range(5):
        notifier.send([job_scheduled("a.b", 2), Hint("job_scheduled", "c.d", number or None, f"{number}")])
    kept = notifier._outbox._waiting.values()
    assert [(hint.subject, hint.count, hint.id) for hint in kept] == [("a.b", 10, ""), ("c.d", None, "")]


def test_outbox_is_limited_while_the_server_is_unreachable(make, caplog):
    notifier = make()
    with pytest.raises(OutboxFull, match=f"500 of {MAX_WAITING + 500} hints were dropped"):
        notifier.send([job_scheduled(f"type.{number}") for number in range(MAX_WAITING + 500)])
    notifier.publish([SHIP])
    notifier.publish([MAIL])
    assert len(notifier._outbox) == MAX_WAITING
    assert caplog.text.count("Wake-ups were not sent") == 1, "the warning is throttled"


def test_waiting_hints_are_sent_after_the_connection(nats_server, make, listen, monkeypatch):
    connect, is_listening = thread.NatsThread._connect_and_serve, threading.Event()

    async def refused(nats):
        if len(nats._outbox) and not is_listening.is_set():
            raise OSError("no route to host")
        await connect(nats)

    monkeypatch.setattr(thread.NatsThread, "_connect_and_serve", refused)
    make(nats_server.url).publish([SHIP])
    received = listen(make([UNREACHABLE, nats_server.url]))  # the other servers of a cluster are tried
    until(lambda: received.hints, what=lambda: received.hints)
    is_listening.set()
    until(lambda: SHIP in received.hints, what=lambda: received.hints)


# Listening


def test_flood_is_replaced_by_one_resync_hint(nats_server, make, monkeypatch):
    """Hints beyond the limit are replaced by one for every subject, so memory is limited."""
    monkeypatch.setattr(thread, "MAX_WAITING", 10)
    received, gate, notifier = [], threading.Event(), make(nats_server.url, budgets=False)
    listener = notifier.listen(lambda hint: gate.wait(15) and received.append(hint), {"job_scheduled"})
    until(lambda: listener.is_alive)
    inner = notifier._subscribers._listener
    nats_server.publish("django_jobchains.job_scheduled", *(b"1:%x:a.%d" % (i, i) for i in range(500)))
    until(lambda: inner._client and inner._client.stats["in_msgs"] == 500)
    until(lambda: inner._missed)
    assert stays(lambda: len(inner._waiting) <= 10, 0.3)
    gate.set()
    until(lambda: not inner._missed and not inner._waiting)
    listener.close()
    assert received.count(job_scheduled(EVERY)) == 2, "one after the connection and one for the flood"
    assert len(received) < 30


@pytest.mark.usefixtures("patient")
def test_documented_permissions_are_sufficient(start_server, make, listen, caplog):
    server = start_server(configuration=permissions_of_the_guide())
    notifier = make(server.url, user="shop", password="secret", budgets=True)
    received = listen(notifier)
    until(lambda: notifier._budgets._opened)
    notifier.publish([job_scheduled("a.b", 3)])
    [hint] = until(received.of_a_type)
    assert [notifier.take(hint, 2, "g") for _ in range(3)] == [2, 1, 0]
    assert caplog.text == ""
    assert "iolation" not in server.output


def test_listener_without_permission_to_subscribe_is_not_alive_and_logs_it(start_server, make, listen, caplog):
    configuration = permissions_of_the_guide().replace('subscribe: ["django_jobchains.*", ', "subscribe: [")
    server = start_server(configuration=configuration)
    received = listen(make(server.url, user="shop", password="secret"), is_waiting=False)
    until(lambda: "permissions violation for subscription" in caplog.text.lower())
    assert stays(lambda: not received.listener.is_alive, 0.5)


def test_tls(start_server, make, listen, tmp_path):
    shown, key = certificate(tmp_path)
    server = start_server(configuration=f"tls {{ cert_file: {shown}, key_file: {key} }}")
    url = f"tls://127.0.0.1:{server.port}"
    trusting = make(url, tls=ssl.create_default_context(cafile=shown))
    received = listen(trusting)
    trusting.publish([SHIP])
    until(lambda: SHIP in received.hints)
    distrustful = listen(make(url), is_waiting=False)
    assert stays(lambda: not distrustful.listener.is_alive, 0.5)


# Forks and dead networks


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_child_does_not_wait_for_a_lock_of_its_parent(nats_server, make):
    notifier = make(nats_server.url)
    with notifier._lock:
        child = Child([lambda: notifier.send([SHIP])])
    assert child.answer() is None
    child.end()


def test_dead_network_is_detected_within_fifteen_seconds():
    assert thread.PROBE_SECONDS + thread.ANSWER_SECONDS + thread.TICK_SECONDS < 15


@pytest.mark.parametrize("fault", ["hangs", "is cancelled"])
@pytest.mark.parametrize("method", ["connect", "flush", "close"])
def test_hanging_driver_call_is_abandoned(nats_server, make, listen, monkeypatch, method, fault):
    """The driver suppresses cancellations in some places, and is cancelled itself in others."""
    for name in ("PROBE_SECONDS", "CONNECT_SECONDS", "ANSWER_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(thread, name, 0.2)
    remaining = ["flush", "close"] if method == "close" else [method]
    has_ended = threading.Event()

    def faulty(name, driver):
        async def call(*args, **options):
            if name not in remaining:
                return await driver(*args, **options)
            remaining.remove(name)
            if name != method:
                raise OSError("the first error, after which the connection is closed")
            if fault == "is cancelled":
                raise asyncio.CancelledError
            while not has_ended.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
            return None

        return call

    for name in tuple(remaining):
        monkeypatch.setattr(thread.Client, name, faulty(name, getattr(thread.Client, name)))
    notifier = make(nats_server.url)
    received = listen(notifier, is_waiting=False)
    try:
        until(lambda: not remaining)
        until(lambda: notifier.publish([job_scheduled(uuid4().hex)]) or received.of_a_type())
    finally:
        has_ended.set()


def test_outbox_is_limited_and_the_connection_abandoned_on_a_dead_network(start_server, make, listen, monkeypatch):
    """The test sends more than the sockets and the driver can hold to a server that reads nothing."""
    monkeypatch.setattr(thread, "PROBE_SECONDS", 1.0)
    monkeypatch.setattr(thread, "ANSWER_SECONDS", 1.0)
    server = start_server()
    notifier = make(server.url)
    listener = listen(notifier).listener
    server.freeze()
    for number in range(40):
        notifier.publish([job_scheduled(f"{number}.{step}." + "x" * 180) for step in range(900)])
        until(lambda: not notifier._outbox or not listener.is_alive)
        assert len(notifier._outbox) <= 1_000
    until(lambda: not listener.is_alive)

    def sockets():
        return [end for end in psutil.Process().net_connections("tcp") if end.raddr and end.raddr.port == server.port]

    until(lambda: not sockets(), what="sockets of an abandoned connection are open")
    server.thaw()
    until(lambda: listener.is_alive)
