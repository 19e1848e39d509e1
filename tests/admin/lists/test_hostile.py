"""Hostile values in URLs and rows have no effect."""

from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_jobchains.models import Job
from tests.admin.lists.browsing import CHAINS, JOBS, address, open_list
from tests.support.chain_shapes import rows

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])

#: Parameters that Django's change list and this one accept, and some that attackers would try.
NAMES = [
    "q", "o", "p", "e", "all", "after", "status", "type", "blocked_by", "_popup", "_to_field", "_facets",
    "_changelist_filters", "_source_model", "id", "id__in", "pk", "type_name__regex", "chain_id__isnull",
    "current_job__last_error__icontains", "run_at__year", "input__a__b", "__", "a__", "__class__", "", "queue",
    "status__in", "created_at__gte", "1=1",
]  # fmt: skip
VALUES = [
    "", "1", "-1", "0", "9" * 30, "9" * 5_000, "failed", "open", "shop.pack", "\0", "a\0", "%", "'", "' OR 1=1 --",
    "id", "id__x", "None", "true", "[]", "{}", "W10", "bnVsbA==", "x" * 3_000, "\u202e", "\ud7ff", "..", "1.2.-3",
    "00000000-0000-0000-0000-000000000000", "0" * 32, "abcdef12", "(a+)+$", "\r\nX: 1", "../../", "//evil.example",
]  # fmt: skip
PAIRS = st.tuples(
    st.one_of(st.sampled_from(NAMES), st.text(max_size=20)), st.one_of(st.sampled_from(VALUES), st.text(max_size=40))
)


@pytest.mark.slow
@BOTH
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs=st.lists(PAIRS, max_size=6))
@example(pairs=[(name, value) for name in NAMES for value in ("x", "1")])
@example(pairs=[("o", "9" * 5_000), ("p", "9" * 5_000), ("after", "9" * 5_000)])
def test_no_url_causes_a_server_error(superuser, name, pairs):
    encoded = urlencode([(key.encode(errors="replace"), value.encode(errors="replace")) for key, value in pairs])
    reply = superuser.get(f"{address(name)}?{encoded}")
    assert reply.status_code in (200, 302, 400)
    if reply.status_code == 302:
        assert reply["Location"].startswith(address(name))


@BOTH
def test_invalid_utf8_causes_no_server_error(superuser, name):
    for query in ("%ff%fe=%ff", "q=%ff%fe", "type=%ed%a0%80", "&&&=", "?", "status[]=failed", "%"):
        assert superuser.get(f"{address(name)}?{query}", follow=True).status_code == 200, query


@pytest.mark.slow
@pytest.mark.parametrize("parameter", ["q", "after", "type"])
def test_no_hostile_value_causes_a_server_error(superuser, parameter):
    rows(1)
    for place, value in enumerate(VALUES):
        name = (CHAINS, JOBS)[place % 2]
        reply = superuser.get(f"{address(name)}?{parameter}={quote(value, errors='replace')}")
        assert reply.status_code in (200, 302), value


VECTORS = [
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'><svg onload=alert(1)>", "javascript:alert(1)",
    "{{ 7|add:7 }}", "{% debug %}", "</textarea><script>alert(1)</script>", "&lt;script&gt;", "<!--vector", "]]>",
]  # fmt: skip


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("vector", VECTORS)
def test_values_of_rows_are_escaped(superuser, name, vector):
    values = {"type_name": vector, "chain_type_name": vector, "queue": vector, "deduplication_key": vector}
    rows(3, status="running", last_error=f"ValueError: {vector}", leased_by=vector, **values)
    for query in ({}, {"type": vector}, {"q": vector}, {"q": f"{vector}x"}):
        page = open_list(superuser, name, query)
        assert page.status == 200
        assert page.html.count(vector) == 0 or not set(vector) & set("<>\"'&")
        assert not [tag for tag, given in page.tags if tag == "img" and given.get("src") == "x"]
        assert not [given for _tag, given in page.tags if any(key.startswith("on") for key in given)]
        assert not [link for link in page.links.values() if link.startswith("javascript:")]
    assert open_list(superuser, name, {"type": vector}).rows[0]["type_name"] == vector
    assert open_list(superuser, name, {"type": vector}).rows[0]["error"] == f"ValueError: {vector}"


@BOTH
def test_lists_have_no_views_that_change_rows(superuser, name):
    rows(3, status="failed")
    before = list(Job.objects.order_by("id").values())
    open_list(superuser, name, "?action=delete_selected&_selected_action=1&index=0&_save=1")
    superuser.post(address(name), {"_save": "1", "form-TOTAL_FORMS": "1", "form-0-status": "completed"})
    assert list(Job.objects.order_by("id").values()) == before
