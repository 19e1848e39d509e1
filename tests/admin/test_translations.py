"""The catalogues are complete, and their compiled files are up to date."""

import re

import pytest

from tests.admin.catalogues import (
    LOCALE,
    PACKAGE,
    Entry,
    asked_for,
    compiled,
    entries,
    placeholders,
    words_outside,
)

LANGUAGES = sorted(path.name for path in LOCALE.iterdir())

every_language = pytest.mark.parametrize("language", LANGUAGES)


def test_there_is_a_german_catalogue():
    assert "de" in LANGUAGES


@every_language
def test_every_text_of_code_and_templates_is_in_the_catalogue(language):
    known = {entry.message for entry in entries(language)}
    assert {text: place for text, place in asked_for().items() if text not in known} == {}


@every_language
def test_the_catalogue_has_no_unused_texts(language):
    assert [entry for entry in entries(language) if entry.is_obsolete] == []
    assert {entry.message for entry in entries(language)} - asked_for().keys() == set()


@every_language
def test_every_text_is_translated_and_none_is_fuzzy(language):
    found = entries(language)
    assert [entry.message for entry in found if not entry.translations or not all(entry.translations)] == []
    assert [entry.message for entry in found if "fuzzy" in entry.flags] == []


@every_language
def test_translations_have_the_placeholders_of_the_text(language):
    assert [entry for entry in entries(language) if not _agrees(entry)] == []


@every_language
def test_translations_keep_leading_and_trailing_punctuation(language):
    ends = re.compile(r"^(\s*).*?([.:…]?\s*)$", re.DOTALL)
    found = [(entry.message.text, text) for entry in entries(language) for text in entry.translations]
    assert [
        pair for pair in found if ends.fullmatch(pair[0]).groups() != ends.fullmatch(pair[1]).groups()
    ] == []  # matches all


@every_language
def test_translations_have_the_tags_of_the_text(language):
    """Texts with tags are not escaped, and neither are their translations."""
    found = [(entry.message.text, text) for entry in entries(language) for text in entry.translations]
    assert [pair for pair in found if _tags(pair[0]) != _tags(pair[1])] == []


@every_language
def test_the_compiled_catalogue_is_up_to_date(language):
    expected: dict[object, str] = {}
    for entry in entries(language):
        for index, text in enumerate(entry.translations):
            expected[(entry.message.text, index) if entry.message.plural else entry.message.text] = text
    found = dict(compiled(language)._catalog)  # there is no public access to all entries
    assert {key: text for key, text in found.items() if key != ""} == expected


def test_templates_have_no_untranslated_texts():
    found = {path.name: words_outside(path.read_text()) for path in (PACKAGE / "templates").rglob("*.html")}
    assert {name: words for name, words in found.items() if words} == {}


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
