"""The catalogues are complete, and their compiled files are up to date."""

import re

import pytest

from tests.admin.catalogues import (
    LOCALE,
    PACKAGE,
    Entry,
    Message,
    asked_for,
    compiled,
    entries,
    of_code,
    of_template,
    placeholders,
    words_outside,
)

LANGUAGES = sorted(path.name for path in LOCALE.iterdir())

every_language = pytest.mark.parametrize("language", LANGUAGES)


def test_there_is_a_german_catalogue() -> None:
    assert "de" in LANGUAGES


@every_language
def test_every_text_of_code_and_templates_is_in_the_catalogue(language: str) -> None:
    known = {entry.message for entry in entries(language)}
    assert {text: place for text, place in asked_for().items() if text not in known} == {}


@every_language
def test_the_catalogue_has_no_unused_texts(language: str) -> None:
    assert [entry for entry in entries(language) if entry.is_obsolete] == []
    assert {entry.message for entry in entries(language)} - asked_for().keys() == set()


@every_language
def test_every_text_is_translated_and_none_is_fuzzy(language: str) -> None:
    found = entries(language)
    assert [entry.message for entry in found if not entry.translations or not all(entry.translations)] == []
    assert [entry.message for entry in found if "fuzzy" in entry.flags] == []


@every_language
def test_translations_have_the_placeholders_of_the_text(language: str) -> None:
    assert [entry for entry in entries(language) if not _agrees(entry)] == []


@every_language
def test_translations_keep_leading_and_trailing_punctuation(language: str) -> None:
    ends = re.compile(r"^(\s*).*?([.:…]?\s*)$", re.DOTALL)
    found = [(entry.message.text, text) for entry in entries(language) for text in entry.translations]
    assert [pair for pair in found if ends.fullmatch(pair[0]).groups() != ends.fullmatch(pair[1]).groups()] == []  # type: ignore[union-attr]  # matches all


@every_language
def test_translations_have_the_tags_of_the_text(language: str) -> None:
    """Texts with tags are not escaped, and neither are their translations."""
    found = [(entry.message.text, text) for entry in entries(language) for text in entry.translations]
    assert [pair for pair in found if _tags(pair[0]) != _tags(pair[1])] == []


@every_language
def test_the_compiled_catalogue_is_up_to_date(language: str) -> None:
    expected: dict[object, str] = {}
    for entry in entries(language):
        for index, text in enumerate(entry.translations):
            key = f"{entry.message.context}\x04{entry.message.text}" if entry.message.context else entry.message.text
            expected[(key, index) if entry.message.plural else key] = text
    found = dict(compiled(language)._catalog)  # type: ignore[attr-defined]  # there is no public access to all entries
    assert {key: text for key, text in found.items() if key != ""} == expected


def test_templates_have_no_untranslated_texts() -> None:
    found = {path.name: words_outside(path.read_text()) for path in (PACKAGE / "templates").rglob("*.html")}
    assert {name: words for name, words in found.items() if words} == {}


def test_untranslated_texts_of_templates_are_found() -> None:
    source = (
        '<p class="a" title="{% translate "b" %}">{# c #}{{ d }} e '
        '<b>{% blocktranslate %}f{% endblocktranslate %}</b> &rsaquo;</p><i title="g">'
    )
    assert words_outside(source) == ["e", "g"]


def test_the_texts_of_code_are_found() -> None:
    source = (
        "from django.utils.translation import gettext_lazy as _, ngettext, pgettext\n"
        "a = _('one' ' text')\nb = ngettext('%s x', '%s xs', n) % n\nc = pgettext('month', 'May')\nd = other('no')\n"
    )
    assert set(of_code(source)) == {Message("one text"), Message("%s x", "%s xs"), Message("May", context="month")}


def test_the_texts_of_templates_are_found() -> None:
    source = (
        '{% load i18n %}{% translate "one" %} two {{ _("three") }} {% translate "four" as five %}'
        '{% blocktranslate count n=rows|length with x="y)" trimmed %}{{ n }} row {% plural %}{{ n }} rows\n'
        '  (all){% endblocktranslate %}{% translate "May" context "month" %}'
    )
    plural = Message("%(n)s row", "%(n)s rows (all)")
    assert of_template(source) == [
        Message("one"),
        Message("three"),
        Message("four"),
        plural,
        Message("May", "", "month"),
    ]


def _agrees(entry: Entry) -> bool:
    """Return whether the placeholders agree. A plural form may omit the count."""
    message = entry.message
    if not message.plural:
        return placeholders(entry.translations[0]) == placeholders(message.text)
    known = placeholders(message.text) | placeholders(message.plural)
    least = placeholders(message.text) & placeholders(message.plural) - {"count", "number"}
    return all(least <= placeholders(text) <= known for text in entry.translations)


def _tags(text: str) -> list[str]:
    return sorted(re.findall("<[^>]*>|[<>&]", text))
