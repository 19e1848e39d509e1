"""The settings of the Redis notifier: the entry of ``CACHES``, its errors, and the system check W004."""

import sys
import time

import pytest
from django.core.cache import caches
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from redis import BlockingConnectionPool

from django_jobchains.notifications import get_notifier, job_scheduled
from tests.support.servers.redis import cache_of, notifier_setting

SHIP = job_scheduled("shop.ship")
AWAY = "redis://127.0.0.1:1/0"
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


@pytest.fixture
def reason(settings):
    """Return a function that returns why settings are refused, without a connection."""

    def reason(caches, **options):
        settings.CACHES = caches
        settings.JOBCHAINS = {"NOTIFIER": notifier_setting(**options)}
        with pytest.raises(ImproperlyConfigured) as raised:
            get_notifier("default")
        return str(raised.value)

    return reason


def test_cache_entry_must_exist(reason):
    assert "CACHES has no entry 'wakeups'. Known: default." in reason(cache_of(AWAY), cache="wakeups")


def test_cache_entry_must_use_django_redis(reason):
    assert "CACHES['default'] does not use django-redis" in reason({"default": LOCMEM})
    of_django = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": AWAY}
    assert "BACKEND 'django_redis.cache.RedisCache'" in reason({"default": LOCMEM, "other": of_django}, cache="other")


def test_sharded_caches_are_refused(reason):
    assert "wake-ups need one" in reason(cache_of(AWAY, CLIENT_CLASS="django_redis.client.ShardClient"))


@pytest.mark.parametrize("url", ["", "127.0.0.1:6379", "redis://:top/secret@127.0.0.1:6379/0", ["redis://[secret/0"]])
def test_invalid_url_is_refused_without_quoting_it(reason, url):
    hint_ = reason(cache_of(url))
    assert "CACHES['default']: LOCATION is not the URL of a server" in hint_
    assert "secret" not in hint_
    assert "top" not in hint_


def test_unknown_options_are_refused(reason):
    assert "chache" in reason(cache_of(AWAY), chache="default")


def test_missing_django_redis_names_the_extra(use_redis, monkeypatch):
    monkeypatch.setitem(sys.modules, "django_redis", None)
    monkeypatch.setitem(sys.modules, "django_redis.cache", None)
    monkeypatch.delitem(sys.modules, "django_jobchains.notifications.redis")
    use_redis(AWAY)
    with pytest.raises(ImproperlyConfigured, match=r"install django_jobchains\[redis\]"):
        get_notifier("default")


def test_option_selects_another_cache_entry(redis_server, settings):
    settings.CACHES = {"default": LOCMEM, "wakeups": cache_of(redis_server.url)["default"]}
    settings.JOBCHAINS = {"NOTIFIER": notifier_setting(cache="wakeups", timeout_seconds=15)}
    get_notifier("default").send([SHIP])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"SOCKET_TIMEOUT": 30, "SOCKET_CONNECT_TIMEOUT": 30},
        {"CONNECTION_POOL_KWARGS": {"socket_timeout": 30, "retry_on_timeout": True, "health_check_interval": 30}},
        {
            "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
            "CONNECTION_POOL_KWARGS": {"max_connections": 1, "timeout": 30},
        },
        {"CLIENT_CLASS": "django_redis.client.HerdClient"},
    ],
)
def test_notifier_has_its_own_timeouts_and_does_not_change_the_cache(redis_server, use_redis, options):
    query = (
        "?socket_timeout=30&socket_connect_timeout=30&health_check_interval=7" if "SOCKET_TIMEOUT" in options else ""
    )
    use_redis(redis_server.url + query, **options)
    cache = caches["default"]
    cache.set("mine", 1)
    pool = cache.client.get_client().connection_pool
    before = dict(pool.connection_kwargs)
    notifier = get_notifier("default")
    notifier.publish([SHIP])
    with notifier._connections.client() as client:
        own = client.connection_pool
        assert own is not pool
        connection = own.make_connection()
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.2, 0.2)
        assert connection.retry._retries == 0
        assert not isinstance(own, BlockingConnectionPool) or own.timeout == 0.2
    assert pool.connection_kwargs == before
    redis_server.freeze()
    started = time.monotonic()
    notifier.publish([job_scheduled("other")])
    assert time.monotonic() - started < 15, "the notifier did not wait for the cache's timeout of 30 seconds"
    redis_server.thaw()
    assert cache.get("mine") == 1
    pool.disconnect()


def test_full_pool_drops_the_hint_without_waiting(redis_server, use_redis, caplog):
    use_redis(redis_server.url, CONNECTION_POOL_KWARGS={"max_connections": 1})
    notifier = get_notifier("default")
    with notifier._connections.client() as client, client.monitor():
        notifier.publish([SHIP])
    assert "Wake-ups were not sent" in caplog.text


@pytest.mark.parametrize(
    ("url", "options", "is_open"),
    [
        ("redis://127.0.0.1:6379/0", {}, True),
        ("redis://jobs@127.0.0.1:6379/0", {}, True),
        ("rediss://127.0.0.1:6379/0", {"CONNECTION_POOL_KWARGS": {"ssl_ca_certs": "ca.pem"}}, True),
        ("redis://:s3cret@127.0.0.1:6379/0", {}, False),
        ("redis://127.0.0.1:6379/0?password=s3cret", {}, False),
        ("redis://127.0.0.1:6379/0", {"PASSWORD": "s3cret"}, False),
        ("redis://127.0.0.1:6379/0", {"CONNECTION_POOL_KWARGS": {"password": "s3cret"}}, False),
        ("rediss://127.0.0.1:6379/0", {"CONNECTION_POOL_KWARGS": {"ssl_certfile": "client.pem"}}, False),
        ("unix:///run/redis.sock", {}, False),
    ],
)
def test_w004_unprotected_redis(use_redis, settings, url, options, is_open):
    use_redis(url, **options)
    warnings = [message for message in deployment_checks() if message.id == "jobchains.W004"]
    assert bool(warnings) == is_open
    if warnings:
        assert "the Redis of CACHES['default'] is used without a password or a certificate" in warnings[0].msg
        assert warnings[0].hint
    settings.DEBUG = True
    assert not [message for message in deployment_checks() if message.id == "jobchains.W004"]


def test_w004_requires_valid_redis_settings(settings):
    for jobchains in ({}, {"NOTIFIER": notifier_setting(cache="wakeups")}, {"SLOT": 1}):
        settings.JOBCHAINS = jobchains
        assert not [message for message in deployment_checks() if message.id == "jobchains.W004"]


def deployment_checks():
    return run_checks(include_deployment_checks=True, tags=["jobchains"])


def test_publishing_does_not_wait_for_a_frozen_sentinel(redis_server, use_redis, caplog):
    use_redis(
        "redis://jobs/0",
        CLIENT_CLASS="django_redis.client.SentinelClient",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=[("127.0.0.1", redis_server.port)],
        SENTINEL_KWARGS={"socket_timeout": 30},
    )
    redis_server.freeze()
    started = time.monotonic()
    get_notifier("default").publish([SHIP])
    assert time.monotonic() - started < 15, "the notifier did not wait for the sentinel's timeout of 30 seconds"
    assert "Wake-ups were not sent" in caplog.text
