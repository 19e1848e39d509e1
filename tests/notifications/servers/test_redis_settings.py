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
OF_DJANGO = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": AWAY}
NO_URL = "CACHES['default']: LOCATION is not the URL of a server"


@pytest.mark.parametrize(
    ("entries", "options", "reason"),
    [
        (cache_of(AWAY), {"cache": "wakeups"}, "CACHES has no entry 'wakeups'. Known: default."),
        ({"default": LOCMEM}, {}, "CACHES['default'] does not use django-redis"),
        ({"default": LOCMEM, "other": OF_DJANGO}, {"cache": "other"}, "BACKEND 'django_redis.cache.RedisCache'"),
        (cache_of(AWAY, CLIENT_CLASS="django_redis.client.ShardClient"), {}, "wake-ups need one"),
        (cache_of(""), {}, NO_URL),
        (cache_of("127.0.0.1:6379"), {}, NO_URL),
        (cache_of("redis://:top/secret@127.0.0.1:6379/0"), {}, NO_URL),
        (cache_of(["redis://[secret/0"]), {}, NO_URL),
        (cache_of(AWAY), {"chache": "default"}, "chache"),
    ],
)
def test_invalid_settings_are_refused_without_a_connection_and_without_quoting_passwords(
    settings, entries, options, reason
):
    settings.CACHES = entries
    settings.JOBCHAINS = {"NOTIFIER": notifier_setting(**options)}
    with pytest.raises(ImproperlyConfigured) as raised:
        get_notifier("default")
    assert reason in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "top" not in str(raised.value)


def test_missing_django_redis_names_the_extra(use_redis, monkeypatch):
    for name in ("django_redis", "django_redis.cache"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "django_jobchains.notifications.redis")
    use_redis(AWAY)
    with pytest.raises(ImproperlyConfigured, match=r"install django_jobchains\[redis\]"):
        get_notifier("default")


def test_option_selects_another_cache_entry(redis_server, settings):
    settings.CACHES = {"default": LOCMEM, "wakeups": cache_of(redis_server.url)["default"]}
    settings.JOBCHAINS = {"NOTIFIER": notifier_setting(cache="wakeups", timeout_seconds=15)}
    get_notifier("default").send([SHIP])


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {}),
        (
            "?socket_timeout=30&socket_connect_timeout=30&health_check_interval=7",
            {"SOCKET_TIMEOUT": 30, "SOCKET_CONNECT_TIMEOUT": 30},
        ),
        ("", {"CONNECTION_POOL_KWARGS": {"socket_timeout": 30, "retry_on_timeout": True, "health_check_interval": 30}}),
        (
            "",
            {
                "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
                "CONNECTION_POOL_KWARGS": {"max_connections": 1, "timeout": 30},
            },
        ),
        ("", {"CLIENT_CLASS": "django_redis.client.HerdClient"}),
    ],
)
def test_notifier_has_its_own_timeouts_and_does_not_change_the_cache(redis_server, use_redis, query, options):
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
    assert_does_not_wait(notifier)
    redis_server.thaw()
    assert cache.get("mine") == 1
    pool.disconnect()


def assert_does_not_wait(notifier):
    started = time.monotonic()
    notifier.publish([job_scheduled("other")])
    assert time.monotonic() - started < 15, "the notifier did not wait for the timeout of 30 seconds in the settings"


def test_publishing_does_not_wait_for_a_frozen_sentinel(redis_server, use_redis, caplog):
    use_redis(
        "redis://jobs/0",
        CLIENT_CLASS="django_redis.client.SentinelClient",
        CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
        SENTINELS=[("127.0.0.1", redis_server.port)],
        SENTINEL_KWARGS={"socket_timeout": 30},
    )
    redis_server.freeze()
    assert_does_not_wait(get_notifier("default"))
    assert "Wake-ups were not sent" in caplog.text


def test_full_pool_drops_the_hint_without_waiting(redis_server, use_redis, caplog):
    use_redis(redis_server.url, CONNECTION_POOL_KWARGS={"max_connections": 1})
    notifier = get_notifier("default")
    with notifier._connections.client() as client, client.monitor():
        notifier.publish([SHIP])
    assert "Wake-ups were not sent" in caplog.text


def w004():
    messages = run_checks(include_deployment_checks=True, tags=["jobchains"])
    return [message for message in messages if message.id == "jobchains.W004"]


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
    warnings = w004()
    assert bool(warnings) == is_open
    for warning in warnings:
        assert "the Redis of CACHES['default'] is used without a password or a certificate" in warning.msg
        assert warning.hint
    settings.DEBUG = True
    assert not w004()


def test_w004_requires_valid_redis_settings(settings):
    for jobchains in ({}, {"NOTIFIER": notifier_setting(cache="wakeups")}, {"SLOT": 1}):
        settings.JOBCHAINS = jobchains
        assert not w004()
