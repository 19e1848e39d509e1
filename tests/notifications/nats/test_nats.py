"""Hints over NATS: what is sent, what is refused, and what a process leaves behind."""

import logging
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobchains.notifications import (
    EVERY,
    Hint,
    Listener,
    chain_finished,
    get_notifier,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.notifications.hints import KINDS, LOOK, encode
from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.notifications.nats_connection import MOST_WAITING, NatsConnection, OutboxFull
from django_jobchains.notifications.nats_listener import NatsListener
from tests.notifications.contract import Heard
from tests.notifications.nats import processes as nats_processes
from tests.notifications.nats.server import NatsServer, StartServer, core_server, nats_server, start_server
from tests.worker.waiting import stays, until

__all__ = ("core_server", "nats_server", "start_server")

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")
NOBODY = "nats://127.0.0.1:1"

Make = Callable[..., NatsNotifier]
Listen = Callable[..., Listener]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[NatsNotifier] = []

    def make(servers: Any = NOBODY, **options: Any) -> NatsNotifier:
        made.append(NatsNotifier("default", servers=servers, **options))
        return made[-1]

    yield make
    for notifier in made:
        notifier.close()


def test_hints_of_two_databases_have_subjects_of_their_own(nats_server: NatsServer) -> None:
    """The alias is all that the notifier is told of a database."""
    default, other = (NatsNotifier(alias, servers=nats_server.url) for alias in ("default", "other"))
    heard = Heard()
    listener = other.listen(heard)
    try:
        until(lambda: set(LOOK) <= set(heard.hints))
        default.publish([SHIP])
        default.close()  # it has been sent
        other.publish([MAIL])
        until(lambda: MAIL in heard.hints)
        assert SHIP not in heard.hints
    finally:
        listener.close()
        other.close()


@pytest.fixture
def listen() -> Iterator[Listen]:
    listeners: list[Listener] = []

    def listen(notifier: NatsNotifier, heard: Callable[[Hint], None], kinds: Any = KINDS) -> Listener:
        listeners.append(notifier.listen(heard, kinds))
        until(lambda: listeners[-1].is_alive)
        return listeners[-1]

    yield listen
    for listener in listeners:
        listener.close()


def waiting(notifier: NatsNotifier) -> dict[Hint, Hint]:
    return notifier._connection._waiting


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"servers": "http://127.0.0.1"}, "nats://host:port"),
            ({"servers": "nats://"}, "nats://host:port"),
            ({"servers": "nats://shop:s3cret@host:port"}, "no valid address or port"),
            ({"servers": []}, "at least one"),
            ({"prefix": "a b"}, "prefix"),
            ({"prefix": "a.>"}, "prefix"),
            ({"pasword": "s3cret"}, r"pasword. Known: user, password"),
        ],
    )
    def test_a_wrong_one_is_a_clear_error(self, settings: Any, options: dict[str, Any], words: str) -> None:
        settings.JOBCHAINS = nats_processes.jobchains(**{"servers": NOBODY, **options})
        with pytest.raises(ImproperlyConfigured, match=words) as raised:
            get_notifier("default")
        assert "s3cret" not in str(raised.value)

    def test_a_server_needs_no_port_and_no_scheme(self, make: Make) -> None:
        servers = ["one", "nats://two", "tls://three:1234", "me:secret@four", "nats://[::1]"]
        expected = ["nats://one:4222", "nats://two:4222", "tls://three:1234", "nats://me:secret@four:4222"]
        assert make(servers)._servers == [*expected, "nats://[::1]:4222"]

    def test_without_the_driver_it_says_what_to_install(self) -> None:
        script = (
            "import sys; sys.modules['nats'] = None\n"
            "from django.core.exceptions import ImproperlyConfigured\n"
            "try:\n    import django_jobchains.notifications.nats\n"
            "except ImproperlyConfigured as error:\n    print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert "install django_jobchains[nats]" in done.stdout

    def test_keys_need_their_package(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
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
    def test_with_credentials_it_is_protected(self, make: Make, options: dict[str, Any]) -> None:
        assert make(**options).unprotected() is None

    def test_without_credentials_it_says_which_server_is_unprotected(self, make: Make) -> None:
        sentence = make(["nats://me:s3cret@one", "two"]).unprotected()
        assert sentence == "the NATS server at two:4222 is used without credentials"


class TestSending:
    def test_a_process_that_ends_at_once_has_sent_its_hints(
        self, nats_server: NatsServer, make: Make, listen: Listen
    ) -> None:
        """Also when a name has to be resolved, for which there are no threads any more."""
        heard = Heard()
        listen(make(nats_server.url), heard)
        for number, host in enumerate(("127.0.0.1", "localhost")):
            hint = job_scheduled(f"short.lived.{number}", 3)
            written = nats_processes.run(
                f"nats://{host}:{nats_server.port}", f"notifier.publish([job_scheduled({hint.subject!r}, 3)])"
            )
            assert written == ""
            until(lambda hint=hint: hint in heard.hints)  # type: ignore[misc]
            assert heard.hints[-1].count == 3

    def test_names_are_resolved_without_an_executor(self, nats_server: NatsServer, make: Make, listen: Listen) -> None:
        """Its threads take no more work while the interpreter ends."""
        before = set(threading.enumerate())
        listen(make(f"nats://localhost:{nats_server.port}"), Heard())
        started = {thread.name for thread in set(threading.enumerate()) - before}
        assert started == {"jobchains-nats-default", "jobchains-nats-default-hints"}

    @pytest.mark.slow
    def test_a_process_ends_although_no_server_answers(self, start_server: StartServer) -> None:
        """It waits for a second, no longer."""
        paused = start_server()
        paused.pause()
        for servers in (NOBODY, paused.url):
            started = time.monotonic()
            assert "Traceback" not in nats_processes.run(servers, "notifier.publish([job_scheduled('a.b')])")
            assert time.monotonic() - started < 15

    def test_a_forked_child_leaves_its_parents_connection_alone(self, nats_server: NatsServer) -> None:
        script = """
heard = []
listener = notifier.listen(heard.append)
until(lambda: len(heard) == 3)
notifier.publish([job_scheduled("from.parent")])
until(lambda: len(heard) == 4)
lock, held, go_on = notifier._connection._lock, threading.Event(), threading.Event()
holder = threading.Thread(target=lambda: (lock.acquire(), held.set(), go_on.wait(), lock.release()))
holder.start()
held.wait()
child = os.fork()
go_on.set()
if not child:
    notifier.publish([job_scheduled("old.notifier")])
    new = get_notifier("default")
    assert new is not notifier and not listener.is_alive
    own = []
    listening = new.listen(own.append)
    until(lambda: listening.is_alive)
    new.publish([job_scheduled("new.notifier")])
    until(lambda: len(own) >= 4)
    listening.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
until(lambda: {hint.subject for hint in heard} >= {"old.notifier", "new.notifier"}, 5, heard)
assert len(heard) == 6 and listener.is_alive, heard
notifier.publish([job_scheduled("after.child")])
until(lambda: len(heard) == 7)
"""
        assert nats_processes.run(nats_server.url, script) == ""

    def test_hints_of_one_kind_and_subject_wait_as_one(self, make: Make) -> None:
        notifier = make()
        for number in range(5):
            notifier.send([job_scheduled("a.b", 2), Hint("job_scheduled", "c.d", number or None, f"{number}")])
        kept = waiting(notifier)
        assert [(hint.subject, hint.count, hint.id) for hint in kept.values()] == [("a.b", 10, ""), ("c.d", None, "")]
        notifier.close()

    def test_memory_is_bounded_while_the_server_is_away(self, make: Make, caplog: Any) -> None:
        notifier = make()
        with pytest.raises(OutboxFull, match=f"500 of {MOST_WAITING + 500} were dropped"):
            notifier.send([job_scheduled(f"type.{number}") for number in range(MOST_WAITING + 500)])
        notifier.publish([SHIP])
        notifier.publish([MAIL])
        assert len(waiting(notifier)) == MOST_WAITING
        assert caplog.text.count("Wake-ups were not sent") == 1, "once in a while"

    def test_what_waited_is_sent_when_the_server_is_back(
        self, start_server: StartServer, make: Make, listen: Listen
    ) -> None:
        server = start_server()
        server.stop()
        notifier = make(server.url)
        notifier.publish([job_scheduled("a.b", 2)])
        server.start()
        heard = Heard()
        listen(make(server.url), heard)
        until(lambda: job_scheduled("a.b") in heard.hints, what=lambda: heard.hints)

    def test_projects_with_prefixes_of_their_own_do_not_hear_each_other(
        self, nats_server: NatsServer, make: Make, listen: Listen
    ) -> None:
        ours, theirs = Heard(), Heard()
        listen(make(nats_server.url, prefix="our.shop"), ours)
        listen(make(nats_server.url, prefix="their-shop"), theirs)
        make(nats_server.url, prefix="our.shop").publish([SHIP])
        until(lambda: ours.of_a_type() == [SHIP])
        assert stays(lambda: theirs.of_a_type() == [], 0.2)


class TestListening:
    def test_only_what_is_wanted_is_subscribed_to(self, nats_server: NatsServer, make: Make, listen: Listen) -> None:
        heard, other = Heard(), Heard()
        notifier = make(nats_server.url)
        first = listen(notifier, heard, {"job_scheduled"})
        inner = notifier._subscribers._listener
        assert isinstance(inner, NatsListener)
        assert inner.kinds == {"job_scheduled"}
        second = listen(notifier, other, {"chain_finished"})
        until(lambda: inner.kinds == {"job_scheduled", "chain_finished"})
        until(lambda: other.hints == [chain_finished(EVERY)])
        second.close()
        until(lambda: inner.kinds == set(inner._subscribed) == {"job_scheduled"})
        assert first.is_alive
        assert heard.hints == [job_scheduled(EVERY)]

    def test_a_callback_may_ask_for_its_budget_and_be_slow(
        self, nats_server: NatsServer, make: Make, listen: Listen
    ) -> None:
        notifier = make(nats_server.url)
        shares: list[int | None] = []

        def look(hint: Hint) -> None:
            if hint.subject != EVERY:
                time.sleep(0.1)
                shares.append(notifier.take(hint, 5, "all"))

        listen(notifier, look)
        until(lambda: notifier._connection.budgets._opened)
        for number in range(3):
            notifier.publish([job_scheduled(f"a.{number}", 2)])
        until(lambda: len(shares) == 3)
        assert shares == [2, 2, 2]

    def test_a_listener_may_close_itself(self, nats_server: NatsServer, make: Make) -> None:
        listeners: list[Listener] = []
        notifier = make(nats_server.url)
        listeners.append(notifier.listen(lambda hint: listeners[0].close() if listeners else None))
        notifier.publish([SHIP])
        until(lambda: not listeners[0].is_alive)

    def test_junk_is_dropped(self, nats_server: NatsServer, make: Make, listen: Listen, caplog: Any) -> None:
        heard = Heard()
        listen(make(nats_server.url), heard)
        until(lambda: heard.hints == [*LOOK])
        junk = [
            b"",
            b"junk",
            b"\xff\xfe",
            b"1:2",
            b"x:y:z",
            b"1:abc:\n",
            b"1:abc:" + b"x" * 900_000,
            b"-1::a",
            b"NaN::a",
        ]
        for kind in sorted(KINDS):
            nats_server.publish(f"django_jobchains.{kind}", *junk)
        nats_server.publish("django_jobchains.nothing", b"1:abc:a")
        nats_server.publish("django_jobchains.job_scheduled", encode(SHIP).encode())
        until(lambda: SHIP in heard.hints)
        assert heard.hints == [*LOOK, SHIP]
        assert caplog.text == ""

    def test_a_flood_is_looked_for_together(
        self, nats_server: NatsServer, make: Make, listen: Listen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More hints than may wait are one "look for yourself"; memory is bounded."""
        monkeypatch.setattr("django_jobchains.notifications.nats_listener.MOST_WAITING", 10)
        heard, gate, notifier = Heard(), threading.Event(), make(nats_server.url)

        def wait(hint: Hint) -> None:
            gate.wait(15)
            heard(hint)

        listen(notifier, wait, {"job_scheduled"})
        inner = notifier._subscribers._listener
        assert isinstance(inner, NatsListener)
        nats_server.publish("django_jobchains.job_scheduled", *(b"1:%x:a.%d" % (i, i) for i in range(500)))
        until(lambda: inner._missed)
        assert stays(lambda: len(inner._waiting) <= 10, 0.3)
        gate.set()
        until(lambda: not inner._missed and not inner._waiting)
        assert heard.hints.count(job_scheduled(EVERY)) == 2, "the first, and for the flood"
        assert len(heard.hints) < 30

    def test_two_of_a_cluster_are_tried(self, nats_server: NatsServer, make: Make, listen: Listen) -> None:
        heard = Heard()
        listen(make([NOBODY, nats_server.url]), heard)
        assert heard.hints


class TestSecurity:
    @pytest.mark.slow
    def test_credentials_are_in_no_log(self, start_server: StartServer, make: Make, caplog: Any) -> None:
        server = start_server(configuration="authorization { user: shop, password: right }")
        caplog.set_level(logging.DEBUG)
        with_url = make(f"nats://shop:s3cret@127.0.0.1:{server.port}")
        with_options = make(server.url, user="shop", password="s3cret")
        for notifier in (with_url, with_options):
            listener = notifier.listen(Heard())
            notifier.publish([SHIP])
            until(lambda: "NATS cannot be used" in caplog.text)
            assert not listener.is_alive
            listener.close()
            assert "s3cret" not in caplog.text
            assert "s3cret" not in repr(notifier)
            caplog.clear()

    def test_the_guides_permissions_are_enough(
        self, start_server: StartServer, make: Make, listen: Listen, caplog: Any
    ) -> None:
        server = start_server(configuration=_permissions_of_the_guide())
        notifier = make(server.url, user="shop", password="secret", budgets=True)
        heard = Heard()
        listen(notifier, heard)
        until(lambda: notifier._connection.budgets._opened)
        notifier.publish([job_scheduled("a.b", 3)])
        until(lambda: heard.of_a_type())
        hint = heard.of_a_type()[0]
        assert [notifier.take(hint, 2, "g") for _ in range(3)] == [2, 1, 0]
        assert caplog.text == ""
        assert "iolation" not in server.output

    def test_a_user_who_may_not_subscribe_is_deaf_and_says_so(
        self, start_server: StartServer, make: Make, caplog: Any
    ) -> None:
        configuration = _permissions_of_the_guide().replace('subscribe: ["django_jobchains.*", ', "subscribe: [")
        server = start_server(configuration=configuration)
        listener = make(server.url, user="shop", password="secret").listen(Heard())
        try:
            until(lambda: "permissions violation for subscription" in caplog.text.lower())
            assert stays(lambda: not listener.is_alive, 0.5)
        finally:
            listener.close()

    def test_tls(self, start_server: StartServer, make: Make, listen: Listen, tmp_path: Path) -> None:
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        subject = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject} -keyout {key} -out {certificate}"
        subprocess.run(command.split(), check=True, capture_output=True)
        server = start_server(configuration=f"tls {{ cert_file: {certificate}, key_file: {key} }}")
        trusting = make(f"tls://127.0.0.1:{server.port}", tls=ssl.create_default_context(cafile=str(certificate)))
        heard = Heard()
        listen(trusting, heard)
        trusting.publish([SHIP])
        until(lambda: SHIP in heard.hints)
        distrustful = make(f"tls://127.0.0.1:{server.port}").listen(Heard())
        assert stays(lambda: not distrustful.is_alive, 0.5)
        distrustful.close()


def test_a_notifier_can_be_used_again_after_close(nats_server: NatsServer, make: Make, listen: Listen) -> None:
    notifier, heard = make(nats_server.url), Heard()
    listen(make(nats_server.url), heard)
    for name in ("a.b", "c.d"):
        notifier.publish([job_scheduled(name)])
        notifier.close()
        assert notifier._connection._thread is None
        until(lambda name=name: job_scheduled(name) in heard.hints)  # type: ignore[misc]


def test_closing_a_notifier_leaves_its_listener_alone(nats_server: NatsServer, make: Make, listen: Listen) -> None:
    notifier, heard = make(nats_server.url), Heard()
    listener = listen(notifier, heard)
    notifier.publish([SHIP])
    notifier.close()
    assert listener.is_alive
    make(nats_server.url).publish([MAIL])
    until(lambda: {SHIP, MAIL} <= set(heard.hints))


def test_every_kind_has_a_subject_of_its_own() -> None:
    connection = NatsConnection("name", {}, "our.shop", None)  # type: ignore[arg-type]
    connection._keep(SHIP)
    connection._keep(chain_finished(uuid4()))
    connection._keep(ownership_lost(uuid4()))
    subjects = [subject for subject, _ in connection.waiting()]
    assert subjects == ["our.shop.job_scheduled", "our.shop.chain_finished", "our.shop.ownership_lost"]


def _permissions_of_the_guide() -> str:
    """The sample of docs/guides/nats.md, as it stands there."""
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "nats.md").read_text()
    return guide.partition("```conf\n")[2].partition("```")[0]
