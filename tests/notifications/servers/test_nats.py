"""The NATS notifier: options, sending, listening, security and processes."""

import asyncio
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.notifications import (
    EVERY,
    Hint,
    chain_finished,
    get_notifier,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.notifications.hints import KINDS
from django_jobchains.notifications.nats import NatsNotifier, OutboxFull, thread
from django_jobchains.notifications.nats.thread import MAX_WAITING, NatsListener
from django_jobchains.testing.contracts import ReceivedHints
from tests.notifications.servers import processes as nats_processes
from tests.support.forks import Child
from tests.support.servers.nats import core_server, nats_server, start_server
from tests.support.waiting import stays, until

__all__ = ("core_server", "nats_server", "start_server")

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


@pytest.fixture
def listen():
    listeners = []

    def listen(notifier, received, kinds=KINDS):
        listeners.append(notifier.listen(received, kinds))
        until(lambda: listeners[-1].is_alive)
        return listeners[-1]

    yield listen
    for listener in listeners:
        listener.close()


def waiting_hints(notifier):
    return notifier._outbox._waiting


@pytest.fixture
def _patient(monkeypatch):
    """Wait longer for budgets, because those that arrive late count as unknown."""
    monkeypatch.setattr("django_jobchains.notifications.nats.thread.TAKE_SECONDS", 15)
    monkeypatch.setattr("django_jobchains.notifications.nats.budgets.ANSWER_SECONDS", 15)


class TestOptions:
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
        ],
    )
    def test_invalid_option_raises_improperly_configured(self, settings, options, message):
        settings.JOBCHAINS = nats_processes.jobchains(**{"servers": UNREACHABLE, **options})
        with pytest.raises(ImproperlyConfigured, match=message) as raised:
            get_notifier("default")
        assert "s3cret" not in str(raised.value)

    def test_port_and_scheme_are_optional(self, make):
        servers = ["one", "nats://two", "tls://three:1234", "me:secret@four", "nats://[::1]"]
        expected = ["nats://one:4222", "nats://two:4222", "tls://three:1234", "nats://me:secret@four:4222"]
        assert make(servers)._servers == [*expected, "nats://[::1]:4222"]

    def test_missing_driver_names_the_extra(self):
        script = (
            "import sys; sys.modules['nats'] = None\n"
            "from django.core.exceptions import ImproperlyConfigured\n"
            "try:\n    import django_jobchains.notifications.nats\n"
            "except ImproperlyConfigured as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert "install django_jobchains[nats]" in done.stdout

    def test_nkeys_require_their_package(self, make, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ImproperlyConfigured, match="nkeys"):
            make(nkeys_seed="seed.txt")

    @pytest.mark.parametrize(
        "options",
        [
            {"servers": "nats://me:s3cret@host"},
            {"servers": "nats://t0ken@host"},
            {"servers": "host", "user": "me", "password": "s3cret"},
            {"servers": "host", "token": "t0ken"},
            {"servers": "host", "tls": ssl.create_default_context()},
        ],
    )
    def test_credentials_are_sufficient_security(self, make, options):
        assert make(**options).security_problem() is None

    def test_security_problem_names_the_unprotected_server(self, make):
        sentence = make(["nats://me:s3cret@one", "two"]).security_problem()
        assert sentence == "the NATS server at two:4222 is used without credentials"


class TestSending:
    def test_short_lived_process_sends_its_hints(self, nats_server, make, listen):
        """This includes resolving a name, for which an exiting interpreter cannot start threads."""
        received = ReceivedHints()
        listen(make(nats_server.url), received)
        for number, host in enumerate(("127.0.0.1", "localhost")):
            hint = job_scheduled(f"short.lived.{number}", 3)
            written = nats_processes.run(
                f"nats://{host}:{nats_server.port}", f"notifier.publish([job_scheduled({hint.subject!r}, 3)])"
            )
            assert written == ""
            until(lambda hint=hint: hint in received.hints)
            assert received.hints[-1].count == 3

    def test_names_are_resolved_without_an_executor(self, nats_server, make, listen):
        """An executor accepts no work while the interpreter ends."""
        before = set(threading.enumerate())
        listen(make(f"nats://localhost:{nats_server.port}"), ReceivedHints())
        started = {thread.name for thread in set(threading.enumerate()) - before}
        assert started == {"jobchains-nats-default", "jobchains-nats-default-hints"}

    @pytest.mark.slow
    def test_process_ends_without_a_responding_server(self, start_server):
        paused = start_server()
        paused.freeze()
        for servers in (UNREACHABLE, paused.url):
            assert "Traceback" not in nats_processes.run(servers, "notifier.publish([job_scheduled('a.b')])")

    def test_waiting_hints_of_one_subject_are_merged(self, make):
        notifier = make()
        for number in range(5):
            notifier.send([job_scheduled("a.b", 2), Hint("job_scheduled", "c.d", number or None, f"{number}")])
        kept = waiting_hints(notifier)
        assert [(hint.subject, hint.count, hint.id) for hint in kept.values()] == [("a.b", 10, ""), ("c.d", None, "")]
        notifier.close()

    def test_outbox_is_limited_while_the_server_is_unreachable(self, make, caplog):
        notifier = make()
        with pytest.raises(OutboxFull, match=f"500 of {MAX_WAITING + 500} hints were dropped"):
            notifier.send([job_scheduled(f"type.{number}") for number in range(MAX_WAITING + 500)])
        notifier.publish([SHIP])
        notifier.publish([MAIL])
        assert len(waiting_hints(notifier)) == MAX_WAITING
        assert caplog.text.count("Wake-ups were not sent") == 1, "the warning is throttled"

    def test_waiting_hints_are_sent_after_the_connection(self, start_server, make, listen):
        server = start_server()
        server.stop()
        notifier = make(server.url)
        notifier.publish([job_scheduled("a.b", 2)])
        server.start()
        received = ReceivedHints()
        listen(make(server.url), received)
        until(lambda: job_scheduled("a.b") in received.hints, what=lambda: received.hints)


class TestListening:
    @pytest.mark.usefixtures("_patient")
    def test_slow_callback_may_take_from_the_budget(self, nats_server, make, listen):
        notifier = make(nats_server.url)
        shares = []

        def take_slowly(hint):
            if hint.subject != EVERY:
                time.sleep(0.1)
                shares.append(notifier.take(hint, 5, "all"))

        listen(notifier, take_slowly)
        until(lambda: notifier._budgets._opened)
        for number in range(3):
            notifier.publish([job_scheduled(f"a.{number}", 2)])
        until(lambda: len(shares) == 3)
        assert shares == [2, 2, 2]

    def test_flood_is_replaced_by_one_resync_hint(self, nats_server, make, listen, monkeypatch):
        """Hints beyond the limit are replaced by one for every subject, so memory is limited."""
        monkeypatch.setattr("django_jobchains.notifications.nats.thread.MAX_WAITING", 10)
        received, gate, notifier = ReceivedHints(), threading.Event(), make(nats_server.url, budgets=False)

        def blocked_callback(hint):
            gate.wait(15)
            received(hint)

        listen(notifier, blocked_callback, {"job_scheduled"})
        inner = notifier._subscribers._listener
        assert isinstance(inner, NatsListener)
        nats_server.publish("django_jobchains.job_scheduled", *(b"1:%x:a.%d" % (i, i) for i in range(500)))
        until(lambda: inner._client and inner._client.stats["in_msgs"] == 500)
        until(lambda: inner._missed)
        assert stays(lambda: len(inner._waiting) <= 10, 0.3)
        gate.set()
        until(lambda: not inner._missed and not inner._waiting)
        assert received.hints.count(job_scheduled(EVERY)) == 2, "one after the connection and one for the flood"
        assert len(received.hints) < 30

    def test_other_servers_of_a_cluster_are_tried(self, nats_server, make, listen):
        received = ReceivedHints()
        listen(make([UNREACHABLE, nats_server.url]), received)
        assert received.hints


class TestSecurity:
    @pytest.mark.usefixtures("_patient")
    def test_documented_permissions_are_sufficient(self, start_server, make, listen, caplog):
        server = start_server(configuration=_permissions_of_the_guide())
        notifier = make(server.url, user="shop", password="secret", budgets=True)
        received = ReceivedHints()
        listen(notifier, received)
        until(lambda: notifier._budgets._opened)
        notifier.publish([job_scheduled("a.b", 3)])
        until(lambda: received.of_a_type())
        hint = received.of_a_type()[0]
        assert [notifier.take(hint, 2, "g") for _ in range(3)] == [2, 1, 0]
        assert caplog.text == ""
        assert "iolation" not in server.output

    def test_listener_without_permission_to_subscribe_is_not_alive_and_logs_it(self, start_server, make, caplog):
        configuration = _permissions_of_the_guide().replace('subscribe: ["django_jobchains.*", ', "subscribe: [")
        server = start_server(configuration=configuration)
        listener = make(server.url, user="shop", password="secret").listen(ReceivedHints())
        try:
            until(lambda: "permissions violation for subscription" in caplog.text.lower())
            assert stays(lambda: not listener.is_alive, 0.5)
        finally:
            listener.close()

    def test_tls(self, start_server, make, listen, tmp_path):
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        subject = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject} -keyout {key} -out {certificate}"
        subprocess.run(command.split(), check=True, capture_output=True)
        server = start_server(configuration=f"tls {{ cert_file: {certificate}, key_file: {key} }}")
        trusting = make(f"tls://127.0.0.1:{server.port}", tls=ssl.create_default_context(cafile=str(certificate)))
        received = ReceivedHints()
        listen(trusting, received)
        trusting.publish([SHIP])
        until(lambda: SHIP in received.hints)
        distrustful = make(f"tls://127.0.0.1:{server.port}").listen(ReceivedHints())
        assert stays(lambda: not distrustful.is_alive, 0.5)
        distrustful.close()


def test_every_kind_has_its_own_subject(make):
    notifier = make(prefix="our.shop")
    notifier._outbox.add([SHIP, chain_finished(uuid4()), ownership_lost(uuid4())])
    subjects = [subject for subject, _ in notifier._outbox.take()]
    assert subjects == ["our.shop.job_scheduled", "our.shop.chain_finished", "our.shop.ownership_lost"]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_child_does_not_wait_for_a_lock_of_its_parent(nats_server, make):
    notifier, held, go_on = make(nats_server.url), threading.Event(), threading.Event()

    def hold():
        with notifier._lock:
            held.set()
            go_on.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    child = Child([lambda: notifier.send([SHIP])])
    go_on.set()
    holder.join()
    assert child.answer() is None
    child.end()


def test_dead_network_is_detected_within_fifteen_seconds():
    assert thread.PROBE_SECONDS + thread.ANSWER_SECONDS + thread.TICK_SECONDS < 15


def connections_to(server):
    """Return the sockets of this process that are connected to the server."""
    return [end for end in psutil.Process().net_connections("tcp") if end.raddr and end.raddr.port == server.port]


@pytest.mark.parametrize("fault", ["hangs", "is cancelled"])
@pytest.mark.parametrize("method", ["connect", "flush", "close"])
def test_hanging_driver_call_is_abandoned(nats_server, make, monkeypatch, method, fault):
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
    received = ReceivedHints()
    notifier = make(nats_server.url)
    listener = notifier.listen(received)
    try:
        until(lambda: not remaining)
        until(lambda: notifier.publish([job_scheduled(uuid4().hex)]) or received.of_a_type())
    finally:
        has_ended.set()
        listener.close()


def test_outbox_is_limited_and_the_connection_abandoned_on_a_dead_network(start_server, make, monkeypatch):
    """The test sends more than the sockets and the driver can hold to a server that reads nothing."""
    monkeypatch.setattr(thread, "PROBE_SECONDS", 1.0)
    monkeypatch.setattr(thread, "ANSWER_SECONDS", 1.0)
    server = start_server()
    notifier = make(server.url)
    listener = notifier.listen(ReceivedHints())
    until(lambda: listener.is_alive)
    server.freeze()
    for number in range(40):
        notifier.publish([job_scheduled(f"{number}.{step}." + "x" * 180) for step in range(900)])
        until(lambda: not notifier._outbox or not listener.is_alive)
        assert len(notifier._outbox) <= 1_000
    until(lambda: not listener.is_alive)
    until(lambda: not connections_to(server), what="sockets of an abandoned connection are open")
    server.thaw()
    until(lambda: listener.is_alive)
    listener.close()


def _permissions_of_the_guide():
    """Return the example of docs/guides/nats.md."""
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "nats.md").read_text()
    return guide.partition("```conf\n")[2].partition("```")[0]
