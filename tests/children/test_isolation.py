"""``Isolation`` is a value with checked limits."""

from dataclasses import FrozenInstanceError, replace

import pytest

from django_jobchains.pools import Isolation, ReusablePool, TransientPool, presets


def test_equal_values_are_the_same_pool():
    first = Isolation("process", key="images", max_rss="500M", memory_limit="1G")
    second = Isolation("process", key="images", max_rss=500 * 1024**2, memory_limit="1024m")
    assert first == second
    assert hash(first) == hash(second)
    assert first != replace(first, cpu_seconds=1)
    with pytest.raises(FrozenInstanceError):
        first.level = "thread"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "fork"}, "level='fork' is not one of 'inline', 'thread', 'process', 'transient'"),
        ({"max_workers": 0}, "max_workers=0 is not a whole number from 1, or None"),
        ({"max_jobs_per_worker": 1.5}, r"max_jobs_per_worker=1\.5"),
        ({"max_rss": "500 MiB"}, "max_rss='500 MiB' is not valid: use bytes, or a string such as '500M'"),
        ({"max_rss": 0}, "max_rss=0"),
        ({"memory_limit": -1}, "memory_limit=-1"),
        ({"message_limit": None}, "message_limit=None is not valid: use bytes, or a string such as '500M'"),
        ({"cpu_seconds": 0}, "cpu_seconds=0 is not a duration"),
        ({"grace_seconds": None}, "grace_seconds=None is not a duration"),
        ({"idle_ttl": float("inf")}, "idle_ttl=inf"),
        ({"setup": "shop.images"}, "setup='shop.images' is not valid: use 'module:function'"),
        ({"key": ""}, "key=''"),
        ({"strict": "yes"}, "strict='yes'"),
        ({"on_fallback": 1}, "on_fallback=1 is not a function"),
        (
            {"level": "thread", "setup": "a:b"},
            "Isolation level 'thread' does not support setup: remove it, or use level",
        ),
        ({"level": "transient", "max_rss": 1}, "Isolation level 'transient' does not support max_rss"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_it(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Isolation(**{"level": "process", **options})


def test_presets_are_values():
    levels = [preset().level for preset in (presets.inline, presets.thread, presets.process, presets.transient)]
    assert levels == ["inline", "thread", "process", "transient"]
    assert presets.balanced() == presets.balanced()


def test_the_constructors_of_pools_check_the_same_limits():
    with pytest.raises(ValueError, match="max_workers=0"):
        ReusablePool(0)
    with pytest.raises(ValueError, match="memory_limit='much'"):
        TransientPool(memory_limit="much")
    assert ReusablePool(2, 3, "4M", 5).isolation == Isolation(
        "process", max_workers=2, max_jobs_per_worker=3, max_rss="4M", idle_ttl=5
    )


@pytest.mark.parametrize("level", ["inline", "thread", "process", "transient"])
def test_a_pool_is_of_its_own_level(level):
    for pool, own in ((ReusablePool, "process"), (TransientPool, "transient")):
        if level == own:
            assert pool.of(Isolation(level)).isolation.level == own
        else:
            with pytest.raises(ValueError, match=f"level='{level}' does not fit this pool"):
                pool.of(Isolation(level))
