"""A registry contains each name once, over all slices and declared types."""

import re

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from django_jobchains import chains
from django_jobchains.exceptions import DuplicateJobType, JobTypeNotFound, ProcessorNotFound
from django_jobchains.processors import JobType, Processors, Registry, get_registry
from django_jobchains.worker import Worker


def slice_of(*names):
    part = Processors()
    for name in names:
        part.register(name)(lambda job: None)
    return part


def test_the_registry_belongs_to_the_app_config():
    registry = apps.get_app_config("django_jobchains").registry
    assert isinstance(registry, Registry)
    assert get_registry() is registry


def test_a_name_used_twice_in_a_slice_is_an_error():
    part = slice_of("shop.charge")
    with pytest.raises(DuplicateJobType, match=r"'shop\.charge' is declared twice"):
        part.register("shop.charge")(lambda job: None)
    assert len(list(part)) == 1


HANDLER, NO_HANDLER = f"{__name__}.slice_of.<locals>.<lambda>", "a JobType without a processor"


@pytest.mark.parametrize(
    ("one", "other", "places"),
    [
        (slice_of("a", "b"), slice_of("b", "c"), [HANDLER, HANDLER]),
        (slice_of("b"), JobType("b"), [NO_HANDLER, HANDLER]),
        (JobType("b"), slice_of("b"), [NO_HANDLER, HANDLER]),
        (JobType("b"), JobType("b"), [NO_HANDLER, NO_HANDLER]),
    ],
)
def test_two_types_with_one_name_are_an_error_that_names_their_handlers(one, other, places):
    registry = Registry()
    registry.add(one)
    with pytest.raises(DuplicateJobType, match=re.escape(f"'b' is declared twice: by {' and by '.join(places)}. Give")):
        registry.add(other)


def test_an_object_may_be_added_twice():
    registry, part, declared = Registry(), slice_of("a"), JobType("b")
    for _ in range(2):
        registry.add(part)
        registry.add(declared)
    assert sorted(registry.job_types()) == ["a", "b"]
    assert len(list(registry.processors())) == 1


def test_a_registered_type_may_be_added_by_itself():
    registry, part = Registry(), Processors()
    job_type = part.register("a")(lambda job: None)
    registry.add(job_type)
    registry.add(part)
    assert registry.job_types() == {"a": job_type}
    assert registry.processor("a").job_type is job_type


def test_a_later_duplicate_stops_the_worker_from_starting():
    registry, one, other = Registry(), slice_of("a"), slice_of("b")
    registry.add(one)
    registry.add(other)
    other.register("a")(lambda job: None)
    with pytest.raises(DuplicateJobType):
        Worker(registry=registry)


def test_an_unknown_name_is_an_error_that_lists_the_known():
    registry = Registry()
    registry.add(slice_of("shop.charge", "shop.mail"))
    with pytest.raises(JobTypeNotFound, match=r"No job type 'shop\.chagre'.* Known: shop\.charge, shop\.mail"):
        registry.job_type("shop.chagre")
    with pytest.raises(ProcessorNotFound, match=r"No processor for 'shop\.chagre'"):
        registry.processor("shop.chagre")


@pytest.mark.django_db
def test_enqueueing_an_unknown_name_is_an_error():
    with pytest.raises(JobTypeNotFound, match="'nobody knows'"):
        chains.enqueue("nobody knows")


def test_a_worker_without_any_matching_type_is_an_error():
    registry = Registry()
    registry.add(slice_of("shop.charge"))
    with pytest.raises(ImproperlyConfigured, match=r"\(types: mail\.\*\)\. Is its app .* Registered: shop\.charge"):
        Worker(registry=registry, types=["mail.*"])
    with pytest.raises(ImproperlyConfigured, match="Registered: none"):
        Worker(registry=Registry())
