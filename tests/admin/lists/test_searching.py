"""The search of the lists."""

from uuid import UUID

import pytest

from django_jobchains import chains
from django_jobchains.admin.base import MAX_ROWS
from django_jobchains.admin.lists import search as searching
from django_jobchains.models import Job
from tests.admin.browsing import open_list
from tests.admin.visibility.test_pages import autocomplete
from tests.support.chain_shapes import rows, steps

pytestmark = pytest.mark.django_db


def of_type(name):
    return rows(1, type_name=name, chain_type_name=name)[0]


@pytest.mark.parametrize("write", [str, lambda id_: id_.hex, lambda id_: f"  {id_} ", lambda id_: str(id_).upper()])
def test_an_id_finds_a_chain_a_job_or_the_steps_of_a_chain(staff, write):
    rows(2)
    chain_id, client = steps(3), staff()
    last = chains.get(chain_id).current_job.id
    for id_ in (chain_id, last):
        assert open_list(client, "chain", {"q": write(id_)}).ids == [str(chain_id)]
    page = open_list(client, "job", {"q": write(last)})
    assert (page.ids, "The job with this id." in page.text) == ([str(last)], True)
    page = open_list(client, "job", {"q": write(chain_id)})
    assert [row["chain"] for row in page.rows] == ["step 3", "step 2", "step 1"]
    assert "The jobs of the chain with this id." in page.text


def test_the_beginning_of_an_id_finds_matching_ids(staff, model):
    ids = [UUID(f"abcdef12-3456-4000-8000-00000000000{number}") for number in range(3)]
    rows(3, ids)
    rows(1, [UUID("abcdef13-3456-4000-8000-000000000000")])
    client = staff()
    for term in ("abcdef12", "ABCDEF12-34", "abcdef12-3456-4000-8000-00000000000"):
        page = open_list(client, model, {"q": term})
        assert page.ids == [str(id_) for id_ in reversed(ids)], term
        assert "Ids that start with this text." in page.text
    assert open_list(client, model, {"q": "abcdef1"}).ids == []


def test_the_beginning_of_a_later_jobs_id_finds_its_chain(staff, model):
    job_id, chain_id = UUID("abcdef12-3456-4000-8000-000000000001"), steps(2)
    Job.objects.filter(chain_id=chain_id, chain_index=1).update(id=job_id)
    assert open_list(staff(), model, {"q": "abcdef12"}).ids == [str(chain_id if model == "chain" else job_id)]


def test_a_key_finds_all_steps_of_its_chains(staff, model):
    rows(2, deduplication_key="order-70")
    chain_ids = [steps(2, deduplication_key="order-7"), steps(2, deduplication_key="order-7")]
    Job.objects.filter(chain_id__in=chain_ids).update(deduplication_key="order-7")
    page = open_list(staff(), model, {"q": "order-7"})
    jobs = Job.objects.filter(chain_id__in=chain_ids).order_by("-chain_id", "-chain_index")
    assert page.ids == [str(id_) for id_ in (reversed(chain_ids) if model == "chain" else [job.id for job in jobs])]
    assert "Matches for this deduplication key." in page.text


def test_the_key_of_a_tenant_is_found_with_both_separators(staff, model):
    rows(1, deduplication_key="order-7"), rows(1, deduplication_key="globex␟order-7")
    [of_tenant], client = rows(1, deduplication_key="acme␟order-7"), staff()
    for term in ("acme␟order-7", "acme/order-7"):
        assert open_list(client, model, {"q": term}).ids == [str(of_tenant)]
    [literal] = rows(1, deduplication_key="acme/order-7")
    assert open_list(client, model, {"q": "acme/order-7"}).ids == [str(literal)]


def test_the_beginning_of_a_type_finds_matching_types(staff, model):
    wanted = [of_type(name) for name in ("mail.send", "mail.sort", "mail.sort", "mailer")]
    rows(2)
    client = staff()
    for term, ids, text in (
        ("mail.", wanted[2::-1], "2 types that start with this text."),
        ("MAIL.SO", wanted[2:0:-1], "Type mail.sort."),
        ("ail", [], ""),
    ):
        page = open_list(client, model, {"q": term})
        assert page.ids == [str(id_) for id_ in ids]
        assert text in page.text


def test_a_search_stays_within_the_filters_and_prefers_keys_to_types(staff, model):
    [wanted] = rows(1, status="failed")
    rows(1, status="running"), rows(1, status="failed", type_name="other", chain_type_name="other")
    client = staff()
    assert open_list(client, model, "?q=shop.&status=failed").ids == [str(wanted)]
    assert open_list(client, model, f"?q={wanted}&status=running").ids == []
    [with_key] = rows(1, deduplication_key="shop.pack", type_name="other", chain_type_name="other")
    assert open_list(client, model, {"q": "shop.pack"}).ids == [str(with_key)]


def test_exceeded_limits_are_reported(staff, model, monkeypatch):
    monkeypatch.setattr(searching, "MAX_MATCHES", 3)
    monkeypatch.setattr(searching, "MAX_TYPES", 2)
    rows(5, deduplication_key="often")
    for name in ("a.one", "a.three", "a.two"):
        of_type(name)
    client = staff()
    page = open_list(client, model, {"q": "often"})
    assert (len(page.ids), "Only the first 3 matches are shown." in page.text) == (3, True)
    page = open_list(client, model, {"q": "a."})
    assert [row["type_name"] for row in page.rows] == ["a.three", "a.one"]
    assert "The first 2 of 3 types that start with this text." in page.text


ODD = [
    "x" * 100_000, "\0", "a\0b", "%", "_", "'", '"', "\\", "' OR 1=1 --", "(a+)+$", "ß" * 500, "\u202e", "0" * 32,
    "{" + "0" * 32 + "}", "urn:uuid:" + "0" * 32, "-" * 40, "0x12345678", "\uff11" * 8, "\n", "   ", "[", "$",
]  # fmt: skip


def test_unusual_terms_find_nothing(staff, model):
    rows(2)
    client = staff()
    for term in ODD:
        page = open_list(client, model, {"q": term})
        assert page.status == 200, term
        assert len(page.ids) == (0 if term.strip() and "\0" not in term else 2), term


def test_an_autocomplete_field_counts_few_rows_and_reads_no_large_columns(superuser, django_assert_max_num_queries):
    job_id = rows(30)[-1]
    with django_assert_max_num_queries(10) as context:
        found = superuser.get(autocomplete("")).json()
    assert found["pagination"] == {"more": True}
    assert found["results"][0]["id"] == str(job_id)
    read = [query["sql"] for query in context.captured_queries if "django_jobchains_job" in query["sql"]]
    assert [f"LIMIT {MAX_ROWS + 1}" in sql for sql in read if "COUNT(" in sql] == [True]
    assert [sql for sql in read if "last_error" in sql or '"output"' in sql] == []
