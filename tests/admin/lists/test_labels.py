"""Labels of types in the lists: what tells jobs of a type apart, for users who may see their inputs."""

import pytest

from django_jobchains import chains
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.models import Job
from django_jobchains.processors import JobType, get_registry
from tests.admin.browsing import Page, choose_action, open_list, url, verb_url
from tests.support.chain_shapes import ship

pytestmark = pytest.mark.django_db


@pytest.fixture
def order(monkeypatch):
    """A type with a label, and two chains of it."""
    order = JobType("shop.order", label="Order {number}", input=dict[str, int])
    monkeypatch.setitem(get_registry().declared, "shop.order", order)
    for number in (7, 8):
        order.enqueue({"number": number})
    return order


def labels(client, model):
    return [row["notes"][:1] for row in open_list(client, model).rows]


def test_rows_have_their_labels(viewer, model, order):
    assert labels(viewer, model) == [["Order 8"], ["Order 7"]]
    Job.objects.filter(input__number=7).update(input={"other": 1})
    assert labels(viewer, model) == [["Order 8"], ["other: 1"]], "an error in a label"


def test_the_label_of_a_chain_is_that_of_its_first_job(viewer, order):
    chain = order.enqueue({"number": 9})
    with chains.current_job(chain.id) as current:
        current.continue_with(ship, {"parcel": 4})
    assert labels(viewer, "chain")[0] == ["Order 9"]
    assert labels(viewer, "job")[:2] == [["parcel: 4"], ["Order 9"]]


def test_labels_require_the_permission_to_view_payloads(staff, model, order):
    assert labels(staff(), model) == [[], []]


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_the_page_that_asks_for_confirmation_has_them(staff, model, order, verb):
    """Also that of an action which none of the rows allows. If there is one row, its page is linked above."""
    clerk, blind = staff("retry_job", "cancel_job", "view_payload"), staff("retry_job", "cancel_job")
    ids = open_list(clerk, model).ids
    for client, shown in ((clerk, ["Order 8", "Order 7"]), (blind, [])):
        page = Page(choose_action(client, verb, ids, model))
        assert [label.text for label in page.root.all("span", "jobchains-label")] == shown
        [crumbs] = Page(client.get(verb_url(verb, Job(pk=ids[0]), model))).root.all("div", "breadcrumbs")
        links = [(link.text, link.attributes["href"]) for link in crumbs.all("a")]
        name = " – ".join(["shop.order", *shown[:1]])
        assert links[2:] == [
            (f"{model.title()}s", url("changelist", model=model)), (name, url("change", Job(pk=ids[0]), model))
        ]  # fmt: skip


@pytest.mark.parametrize("decides", ["may", "has_view_permission"])
def test_labels_of_single_rows_can_be_hidden(staff, order, monkeypatch, decides):
    """If the first job of a chain is hidden, or its input."""
    viewer, [hidden, shown] = staff("view_payload", "cancel_job"), Job.objects.order_by("id")
    for id_ in (hidden.id, shown.id):
        with chains.current_job(id_) as current:
            current.continue_with(ship, 1)

    def rule(self, request, *given):
        is_hidden = hidden.id in [getattr(each, "id", None) for each in given]
        return getattr(super(JobAdmin, self), decides)(request, *given) and not is_hidden

    monkeypatch.setattr(JobAdmin, decides, rule)
    seen = {note for row in open_list(viewer, "chain").rows for note in row["notes"]}
    assert "Order 7" not in seen
    confirmation = Page(choose_action(viewer, "cancel", [hidden.id, shown.id]))
    of_confirmation = {label.text for label in confirmation.root.all("span", "jobchains-label")}
    assert of_confirmation == {note for note in seen if note.startswith("Order")}
    assert ("Order 8" in seen) == (decides == "has_view_permission")
    assert "Order 7" not in open_list(viewer, "job").text


def test_whether_payloads_are_shown_can_depend_on_the_chain(viewer, order, monkeypatch):
    monkeypatch.setattr(ChainAdmin, "may", lambda self, request, permission, obj=None: obj is None)
    assert labels(viewer, "chain") == [[], []]


def test_long_inputs_have_no_label(viewer, model, order):
    Job.objects.filter(input__number=7).update(input={"number": 7, "text": "".join(map(chr, range(100, 50_000, 3)))})
    assert labels(viewer, model) == [["Order 8"], []]
