"""The search of the lists."""

from uuid import UUID

import pytest

from django_jobchains import chains
from django_jobchains.admin.lists import search as searching
from django_jobchains.models import Job
from tests.admin.lists.browsing import CHAINS, JOBS, open_list
from tests.support.chain_shapes import rows, steps

pytestmark = pytest.mark.django_db
BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])


def last_job(chain_id: UUID) -> UUID:
    return chains.get(chain_id).current_job.id


@pytest.mark.parametrize("write", [str, lambda id_: id_.hex, lambda id_: f"  {id_} ", lambda id_: str(id_).upper()])
def test_the_id_of_a_job_finds_its_chain(staff, write):
    rows(2)
    chain_id = steps(3)
    rows(2)
    client = staff()
    assert open_list(client, CHAINS, {"q": write(chain_id)}).ids == [str(chain_id)]
    assert open_list(client, CHAINS, {"q": write(last_job(chain_id))}).ids == [str(chain_id)]


def test_an_id_finds_a_job_or_the_steps_of_a_chain(staff):
    rows(2)
    chain_id = steps(3)
    last = last_job(chain_id)
    client = staff()
    page = open_list(client, JOBS, {"q": str(last)})
    assert page.ids == [str(last)]
    assert "The job with this id." in page.text
    page = open_list(client, JOBS, {"q": str(chain_id)})
    assert [row["step"] for row in page.rows] == ["3", "2", "1"]
    assert "The jobs of the chain with this id." in page.text


@BOTH
def test_the_beginning_of_an_id_finds_matching_ids(staff, name):
    ids = [UUID(f"abcdef12-3456-4000-8000-00000000000{number}") for number in range(3)]
    rows(3, ids)
    rows(2, [UUID(f"abcdef13-3456-4000-8000-00000000000{number}") for number in range(2)])
    client = staff()
    for term in ("abcdef12", "ABCDEF12-34", "abcdef12-3456-4000-8000-00000000000"):
        page = open_list(client, name, {"q": term})
        assert page.ids == [str(id_) for id_ in reversed(ids)], term
        assert "Ids that start with this text." in page.text
    assert open_list(client, name, {"q": "abcdef1"}).ids == []


def test_the_beginning_of_a_later_jobs_id_finds_its_chain(staff):
    job_id = UUID("abcdef12-3456-4000-8000-000000000001")
    chain_id = steps(2)
    Job.objects.filter(chain_id=chain_id, chain_index=1).update(id=job_id)
    client = staff()
    assert open_list(client, CHAINS, {"q": "abcdef12"}).ids == [str(chain_id)]
    assert open_list(client, JOBS, {"q": "abcdef12"}).ids == [str(job_id)]


@BOTH
def test_a_key_finds_all_steps_of_its_chains(staff, name):
    rows(2, deduplication_key="order-70")
    chain_ids = [steps(2, deduplication_key="order-7"), steps(2, deduplication_key="order-7")]
    Job.objects.filter(chain_id__in=chain_ids).update(deduplication_key="order-7")
    page = open_list(staff(), name, {"q": "order-7"})
    expected = list(Job.objects.filter(chain_id__in=chain_ids).order_by("-chain_id", "-chain_index"))
    wanted = [str(job.id) for job in expected] if name == JOBS else [str(id_) for id_ in reversed(chain_ids)]
    assert page.ids == wanted
    assert "Matches for this deduplication key." in page.text


@BOTH
@pytest.mark.parametrize("term", ["acme␟order-7", "acme/order-7"])
def test_the_key_of_a_tenant_is_found_with_both_separators(staff, name, term):
    rows(1, deduplication_key="order-7"), rows(1, deduplication_key="globex␟order-7")
    [wanted] = rows(1, deduplication_key="acme␟order-7")
    page = open_list(staff(), name, {"q": term})
    assert page.ids == [str(wanted)]
    assert "acme␟order-7" in page.text or name == JOBS


@BOTH
def test_a_key_with_a_slash_is_first_searched_literally(staff, name):
    rows(1, deduplication_key="acme␟order-7")
    [wanted] = rows(1, deduplication_key="acme/order-7")
    assert open_list(staff(), name, {"q": "acme/order-7"}).ids == [str(wanted)]


@BOTH
def test_the_beginning_of_a_type_finds_matching_types(staff, name):
    wanted = [
        rows(1, type_name=each, chain_type_name=each)[0] for each in ("mail.send", "mail.sort", "mail.sort", "mailer")
    ]
    rows(2)
    client = staff()
    assert open_list(client, name, {"q": "mail."}).ids == [str(id_) for id_ in wanted[2::-1]]
    assert "2 types that start with this text." in open_list(client, name, {"q": "mail."}).text
    assert open_list(client, name, {"q": "MAIL.SO"}).ids == [str(id_) for id_ in wanted[2:0:-1]]
    assert "Type mail.sort." in open_list(client, name, {"q": "mail.so"}).text
    assert open_list(client, name, {"q": "ail"}).ids == []


@BOTH
def test_a_search_stays_within_the_filters(staff, name):
    wanted = rows(1, status="failed")
    rows(1, status="running"), rows(1, status="failed", type_name="other", chain_type_name="other")
    client = staff()
    assert open_list(client, name, "?q=shop.&status=failed").ids == [str(wanted[0])]
    assert open_list(client, name, f"?q={wanted[0]}&status=running").ids == []
    assert open_list(client, name, "?q=shop.&type=other").ids == []


@BOTH
def test_a_key_takes_precedence_over_a_type(staff, name):
    rows(1)
    with_key = rows(1, deduplication_key="shop.pack", type_name="other", chain_type_name="other")
    page = open_list(staff(), name, {"q": "shop.pack"})
    assert page.ids == [str(with_key[0])]
    assert "Matches for this deduplication key." in page.text


@BOTH
def test_exceeded_limits_are_reported(staff, name, monkeypatch):
    monkeypatch.setattr(searching, "MAX_MATCHES", 3)
    monkeypatch.setattr(searching, "MAX_TYPES", 2)
    rows(5, deduplication_key="often")
    for each in ("a.one", "a.three", "a.two"):
        rows(1, type_name=each, chain_type_name=each)
    client = staff()
    page = open_list(client, name, {"q": "often"})
    assert (len(page.ids), "Only the first 3 matches are shown." in page.text) == (3, True)
    page = open_list(client, name, {"q": "a."})
    assert [row["type_name"] for row in page.rows] == ["a.three", "a.one"]
    assert "The first 2 of 3 types that start with this text." in page.text


@BOTH
def test_the_search_box_has_a_help_text(staff, name):
    text = open_list(staff(), name).text
    assert (
        "Search for an id or at least its first 8 digits, a complete deduplication key, or the beginning of a type."
        in text
    )


ODD = [
    "x" * 100_000, "\0", "a\0b", "%", "_", "'", '"', "\\", "' OR 1=1 --", "(a+)+$", "ß" * 500, "\u202e", "0" * 32,
    "{" + "0" * 32 + "}", "urn:uuid:" + "0" * 32, "-" * 40, "0x12345678", "\uff11" * 8, "\n", "   ", "[", "$",
]  # fmt: skip


@BOTH
def test_unusual_terms_find_nothing(staff, name):
    rows(2)
    client = staff()
    for term in ODD:
        page = open_list(client, name, {"q": term})
        assert page.status == 200, term
        assert len(page.ids) == (0 if term.strip() and "\0" not in term else 2), term
